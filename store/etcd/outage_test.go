package etcd_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/store"
	"vipd/store/etcd/client"
	"vipd/store/etcd/watch"
	"vipd/store/statedir"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

const web = `{"vips":["10.96.0.10"],"ports":[{"port":80}],"endpoints":[{"address":"192.168.1.11"}]}`

// single starts a single member behind a relay, with a service and an endpoint.
func single(t *testing.T, o etcdkit.Options) (*etcdkit.Cluster, *etcdkit.Relay, *place) {
	t.Helper()
	c := etcdkit.Start(t, o)
	relay := etcdkit.NewRelay(t, c.Members[0].Addr())
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.config.Endpoints = []string{c.URL(relay.Addr())}
	p.put("/services/web", web)
	p.put("/endpoints/web/a", `{"address":"192.168.1.12"}`)
	return c, relay, p
}

// TestOutage interrupts the connection to etcd. The last state must stay in use. The outage must be
// reported only once, even if its reason changes, and its end must also be reported once.
func TestOutage(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*etcdkit.Relay){"refused": (*etcdkit.Relay).Cut, "swallowed": (*etcdkit.Relay).Freeze} {
		t.Run(name, func(t *testing.T) {
			_, relay, p := single(t, etcdkit.Options{})
			timing := hastened()
			if name == "refused" {
				timing.Silence = wait.Bound(0) // not tested here, and it would cause another outage on a busy machine
			}
			source := newSource(t, watch.Options{Config: p.config, Patience: time.Millisecond, Timing: timing})
			f := follow(t, source)
			before := f.wait("the first state", connected)
			n := f.turns()
			fault(relay)
			away := f.wait("the outage", func(s store.Snapshot) bool { return !s.Connected })
			if away.Services != before.Services || away.Endpoints != before.Endpoints || away.Revision != before.Revision {
				t.Error("state during the outage changed, want the last state")
			}
			if away.Err == nil || !strings.Contains(away.Err.Error(), p.config.Endpoints[0]) || !strings.Contains(away.Err.Error(), "serving revision 3") {
				t.Errorf("error = %v, want the endpoint and the served revision", away.Err)
			}
			relay.Heal()
			back := f.wait("the return", connected)
			if back.Services != before.Services || back.Endpoints != before.Endpoints || back.Err != nil {
				t.Errorf("state after the reconnection changed, or error = %v, want neither", back.Err)
			}
			if got := f.turns() - n; got != 2 {
				t.Errorf("outage events = %d, want one start and one end", got)
			}
			f.reaches(p.put("/services/web", `{"vips":["10.96.0.11"],"ports":[{"port":80}]}`))
		})
	}
}

// TestSilence stops a server, so it keeps its connections but sends nothing. The source must report
// an outage.
func TestSilence(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{})
	p.config.Endpoints = c.Endpoints()
	f := follow(t, newSource(t, watch.Options{Config: p.config, Patience: time.Millisecond}))
	f.wait("the first state", connected)
	c.Members[0].Pause()
	f.wait("the silence to be noticed", func(s store.Snapshot) bool { return !s.Connected })
	c.Members[0].Resume()
	f.wait("the return", connected)
}

// TestCompaction compacts changes made during an outage. The source must find them with a full
// read.
func TestCompaction(t *testing.T) {
	t.Parallel()
	c, relay, p := single(t, etcdkit.Options{})
	for _, name := range []string{"b", "c", "d"} {
		p.put("/services/"+name, web)
	}
	f := follow(t, newSource(t, watch.Options{Config: p.config}))
	before := f.wait("the first state", connected)
	relay.Cut()
	p.put("/services/b", `{"vips":["10.96.0.11"],"ports":[{"port":80}]}`)
	p.remove("/services/c")
	c.Compact()
	relay.Heal()
	after := f.wait("the changes", func(s store.Snapshot) bool {
		return !s.Services.Has("c") && s.Services.At("b") != before.Services.At("b")
	})
	if after.Services.At("d") != before.Services.At("d") {
		t.Error("pointer of an unchanged service changed, want the same pointer")
	}
}

// TestWipe wipes etcd, and writes more or fewer revisions than were seen before. The source must
// detect the other history.
func TestWipe(t *testing.T) {
	t.Parallel()
	for _, writes := range []int{0, 20} { // below the last seen revision, and above it
		c, relay, p := single(t, etcdkit.Options{})
		f := follow(t, newSource(t, watch.Options{Config: p.config}))
		f.wait("the first state", connected)
		relay.Cut()
		c.Members[0].Stop()
		c.Members[0].Wipe()
		c.Members[0].Start()
		p.put("/services/new", web)
		for range writes {
			p.put("/elsewhere", "x")
		}
		relay.Heal()
		f.wait("the new history", func(s store.Snapshot) bool {
			return s.Services.Has("new") && s.Services.Len() == 1 && s.Endpoints.Len() == 0
		})
	}
}

// TestRestart starts a source while etcd is unavailable. It must serve the saved state, and
// continue with this state once etcd is available.
func TestRestart(t *testing.T) {
	t.Parallel()
	_, relay, p := single(t, etcdkit.Options{})
	dir := t.TempDir()
	options := watch.Options{Config: p.config, Patience: time.Millisecond}
	f := followWithState(t, options, dir)
	before := f.wait("the first state", connected)
	p.put("/services/web", `{"vips":`)
	f.wait("the problem of web", func(s store.Snapshot) bool { return len(s.Problems) == 1 })
	relay.Cut()
	f.stop()

	f = followWithState(t, options, dir)
	kept := f.wait("the saved state", func(store.Snapshot) bool { return true })
	if kept.Connected || kept.Err == nil || !strings.Contains(kept.Err.Error(), dir) {
		t.Errorf("connected = %t, error = %v; want the folder of the saved state", kept.Connected, kept.Err)
	}
	if err := agree(kept, store.Snapshot{Services: before.Services, Endpoints: before.Endpoints}); err != nil {
		t.Errorf("saved state differs from the published state: %v", err)
	}
	relay.Heal()
	back := f.wait("the return", connected)
	if back.Services != kept.Services || back.Endpoints != kept.Endpoints || len(back.Problems) != 1 {
		t.Errorf("pointers of unchanged values changed, or problems = %v, want one problem", back.Problems)
	}
	p.remove("/endpoints/web/a")
	f.wait("a change", func(s store.Snapshot) bool { return s.Endpoints.Len() == 0 })
	f.stop()

	info, err := os.Stat(filepath.Join(dir, "etcd.state"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file = %v, %v, want 0600 because services may contain secrets", info.Mode(), err)
	}
	other := options
	other.Prefix = "/elsewhere"
	relay.Cut()
	f = followWithState(t, other, dir)
	if s := f.wait("the state of another fleet", func(store.Snapshot) bool { return true }); s.Services.Len() != 0 {
		t.Error("services of another prefix = some, want none")
	}
}

// keptState returns options of a source, and the directory with the saved state of an etcd that is
// no longer reachable.
func keptState(t *testing.T) (options watch.Options, dir string) {
	t.Helper()
	_, relay, p := single(t, etcdkit.Options{})
	options, dir = watch.Options{Config: p.config, Patience: time.Millisecond}, t.TempDir()
	f := followWithState(t, options, dir)
	f.wait("the first state", connected)
	f.stop()
	relay.Cut()
	return options, dir
}

// TestDamagedState damages the saved state. The file must be set aside, and no part of it may be
// served.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	options, dir := keptState(t)
	path := filepath.Join(dir, "etcd.state")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string][]byte{
		"empty": {}, "cut short": text[:len(text)/2], "without its end": text[:len(text)-66],
		"edited": []byte(strings.Replace(string(text), "10.96", "10.97", 1)), "something else": []byte("hello\n"),
	} {
		if err := os.WriteFile(path, damage, 0o600); err != nil {
			t.Fatal(err)
		}
		f := followWithState(t, options, dir)
		s := f.wait("the start", func(store.Snapshot) bool { return true })
		if s.Services.Len() != 0 || s.Revision != 0 || s.Connected || s.Err == nil {
			t.Errorf("%s: %d services of revision %d, connected = %t, %v, want none with an error", name, s.Services.Len(), s.Revision, s.Connected, s.Err)
		}
		f.stop()
		if aside, err := os.ReadFile(path + ".broken"); err != nil || string(aside) != string(damage) {
			t.Errorf("%s: file set aside: %v, want the damaged text", name, err)
		}
	}
}

// TestUnreadableState makes the saved state unreadable. The file must stay, and must be reported.
func TestUnreadableState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "etcd.state")
	if err := os.Mkdir(path, 0o700); err != nil { // even root can't read a directory as a file
		t.Fatal(err)
	}
	var log lockedText
	f := followWithState(t, watch.Options{
		Config:   client.Config{Endpoints: []string{"http://127.0.0.1:1"}, Prefix: "/vipda"},
		Patience: time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil)),
	}, dir)
	f.wait("the start", func(s store.Snapshot) bool { return s.Revision == 0 && s.Err != nil })
	f.stop()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 || files[0].Name() != "etcd.state" {
		t.Errorf("files = %v, %v, want etcd.state", files, err)
	}
	if !strings.Contains(log.String(), "the file is left unchanged") {
		t.Errorf("log = %s, want that the file is left", log.String())
	}
}

// TestStateOfPrefixWithSlash adds a slash to the prefix, in the file or in the configuration. It
// must remain the same fleet.
func TestStateOfPrefixWithSlash(t *testing.T) {
	t.Parallel()
	options, dir := keptState(t)
	serves := func(prefix string) {
		t.Helper()
		options.Prefix = prefix
		f := followWithState(t, options, dir)
		if s := f.wait("the start", func(store.Snapshot) bool { return true }); s.Services.Len() != 1 {
			t.Errorf("services with prefix %s = %d, want 1", prefix, s.Services.Len())
		}
		f.stop()
	}
	serves("/vipda/")
	text, err := os.ReadFile(filepath.Join(dir, "etcd.state"))
	if err != nil {
		t.Fatal(err)
	}
	// This is the form in which an earlier vipd with the slash in its configuration has written the
	// file.
	text = bytes.Replace(text[:bytes.LastIndexByte(text[:len(text)-1], '\n')+1], []byte(`"prefix":"/vipda"`), []byte(`"prefix":"/vipda/"`), 1)
	if err := os.WriteFile(filepath.Join(dir, "etcd.state"), fmt.Appendf(text, "%x\n", sha256.Sum256(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	serves("/vipda")
	serves("/vipda/")
}

// TestTooManyKeys exceeds the maximum number of keys, at the start or later. All keys must be
// rejected, and the previous state must be served until the excess is removed.
func TestTooManyKeys(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	source := newSource(t, watch.Options{Config: p.config, Patience: time.Millisecond, Timing: hastened(maxKeys(5))})
	f := follow(t, source)
	before := f.wait("the first state", connected)
	for i := range 4 {
		p.put(fmt.Sprint("/overrides/web/10.0.0.", i), `{"weight":1}`)
	}
	refused := func(s store.Snapshot) bool {
		return !s.Connected && s.Err != nil && strings.Contains(s.Err.Error(), "there are 6 keys below /vipda; at most 5 are allowed")
	}
	if s := f.wait("the refusal", refused); s.Services != before.Services || s.Endpoints != before.Endpoints {
		t.Error("services or endpoints changed, want the earlier state")
	}
	second := newSource(t, watch.Options{Config: p.config, Patience: time.Millisecond, Timing: hastened(maxKeys(5))})
	if s := follow(t, second).wait("the refusal at the start", refused); s.Services.Len() != 0 || s.Revision != 0 {
		t.Errorf("%d services of revision %d are served, want none", s.Services.Len(), s.Revision)
	}
	p.remove("/overrides/web/10.0.0.1")
	f.wait("the return", func(s store.Snapshot) bool { return s.Connected && s.Overrides.Len() == 3 })
}

// TestStateDirMissing removes the directory of the saved state. A problem must report this, and
// everything else must continue to work.
func TestStateDirMissing(t *testing.T) {
	t.Parallel()
	_, relay, p := single(t, etcdkit.Options{})
	dir := statedir.New(filepath.Join(t.TempDir(), "none"), func() {})
	f := follow(t, newSource(t, watch.Options{Config: p.config, StateDir: dir, Patience: time.Millisecond}))
	f.wait("the first state", connected)
	relay.Cut()
	f.wait("the outage", func(s store.Snapshot) bool { return !s.Connected && s.Services.Len() == 1 })
	relay.Heal()
	f.reaches(p.put("/endpoints/web/b", `{"address":"10.0.0.9"}`))
	f.stop()
	if err := dir.Close(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Close = %v, want fs.ErrNotExist", err)
	}
	const want = "the last good state of etcd is not saved: saving etcd.state in state_dir: "
	if p := dir.Problems(); len(p) != 1 || !strings.HasPrefix(p[0].Text, want) {
		t.Errorf("problems = %v, want %s", p, want)
	}
}
