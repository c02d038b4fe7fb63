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

// single starts a cluster with a single member behind a relay. It writes the service "web" and a
// registered endpoint. The place connects through the relay, except for its client.
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

// TestOutage interrupts the connection to etcd. The last state must stay in use. The source must
// report the outage only once, even if its reason changes, and must report its end once.
func TestOutage(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*etcdkit.Relay){"refused": (*etcdkit.Relay).Cut, "swallowed": (*etcdkit.Relay).Freeze} {
		t.Run(name, func(t *testing.T) {
			_, relay, p := single(t, etcdkit.Options{})
			timing := hastened()
			if name == "refused" {
				timing.Silence = wait.Bound(0) // silence is not tested here, and would cause another outage on a busy machine
			}
			source := newSource(t, watch.Options{Config: p.config, Patience: time.Millisecond, Timing: timing})
			f := follow(t, source)
			before := f.wait("the first state", connected)
			n := f.turns()
			fault(relay)
			away := f.wait("the outage", func(s store.Snapshot) bool { return !s.Connected })
			if away.Services != before.Services || away.Endpoints != before.Endpoints || away.Revision != before.Revision {
				t.Error("services, endpoints or revision changed during the outage, want the last state")
			}
			if away.Err == nil || !strings.Contains(away.Err.Error(), p.config.Endpoints[0]) || !strings.Contains(away.Err.Error(), "serving revision 3") {
				t.Errorf("error during the outage = %v, want one with the endpoint and the served revision", away.Err)
			}
			relay.Heal()
			back := f.wait("the return", connected)
			if back.Services != before.Services || back.Endpoints != before.Endpoints || back.Err != nil {
				t.Errorf("after the outage: the state changed, or error = %v, want neither", back.Err)
			}
			if got := f.turns() - n; got != 2 {
				t.Errorf("changes between connected and disconnected = %d, want 2", got)
			}
			f.reaches(p.put("/services/web", `{"vips":["10.96.0.11"],"ports":[{"port":80}]}`))
		})
	}
}

// TestSilence pauses a server, so the server keeps its connections but sends nothing. The source
// must report an outage.
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

// TestCompaction makes changes during an outage and compacts them. The source must still find these
// changes, with a full read.
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
		t.Error("an unchanged service got a new pointer")
	}
}

// TestWipe wipes etcd, and then writes fewer or more revisions than the source has seen before. The
// source must detect that etcd has another history, and publish the new state.
func TestWipe(t *testing.T) {
	t.Parallel()
	for _, writes := range []int{0, 20} { // the new revision is below or above the last seen revision
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

// TestRestart restarts a source while etcd is unavailable. The source must publish the saved state.
// When etcd is available again, unchanged values must keep their pointers.
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
		t.Errorf("connected = %t, error = %v; want false, and an error with the folder of the saved state", kept.Connected, kept.Err)
	}
	if err := agree(kept, store.Snapshot{Services: before.Services, Endpoints: before.Endpoints}); err != nil {
		t.Errorf("saved state differs from the published state: %v", err)
	}
	relay.Heal()
	back := f.wait("the return", connected)
	if back.Services != kept.Services || back.Endpoints != kept.Endpoints || len(back.Problems) != 1 {
		t.Errorf("unchanged values got new pointers, or problems = %v, want one problem", back.Problems)
	}
	p.remove("/endpoints/web/a")
	f.wait("a change", func(s store.Snapshot) bool { return s.Endpoints.Len() == 0 })
	f.stop()

	info, err := os.Stat(filepath.Join(dir, "etcd.state"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("saved state: mode = %v, %v, want 0600, because services may contain secrets", info.Mode(), err)
	}
	other := options
	other.Prefix = "/elsewhere"
	relay.Cut()
	f = followWithState(t, other, dir)
	if s := f.wait("the state of another fleet", func(store.Snapshot) bool { return true }); s.Services.Len() != 0 {
		t.Error("a source with another prefix uses the saved state")
	}
}

// keptState returns the options of a source that has saved its state, and the directory with the
// saved state. etcd is no longer reachable.
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

// TestDamagedState damages the saved state and starts a source. The source must rename the file to
// etcd.state.broken, and must not use any part of it.
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
			t.Errorf("%s: services = %d, revision = %d, connected = %t, error = %v, want 0, 0, false and an error", name, s.Services.Len(), s.Revision, s.Connected, s.Err)
		}
		f.stop()
		if aside, err := os.ReadFile(path + ".broken"); err != nil || string(aside) != string(damage) {
			t.Errorf("%s: etcd.state.broken has another text, or reading it = %v, want the damaged text", name, err)
		}
	}
}

// TestUnreadableState starts a source whose saved state can't be read. The file must remain
// unchanged, and the log must report that.
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
		t.Errorf("files = %v, %v, want only etcd.state", files, err)
	}
	if !strings.Contains(log.String(), "the file is left unchanged") {
		t.Errorf("log = %s, want a message about the unchanged file", log.String())
	}
}

// TestStateOfPrefixWithSlash adds a slash to the end of the prefix, in the saved state or in the
// configuration. The prefix must still belong to the same fleet, so the saved state must be served.
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
	// An earlier version of vipd wrote this file if the prefix in its configuration ended with a
	// slash.
	text = bytes.Replace(text[:bytes.LastIndexByte(text[:len(text)-1], '\n')+1], []byte(`"prefix":"/vipda"`), []byte(`"prefix":"/vipda/"`), 1)
	if err := os.WriteFile(filepath.Join(dir, "etcd.state"), fmt.Appendf(text, "%x\n", sha256.Sum256(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	serves("/vipda")
	serves("/vipda/")
}

// TestTooManyKeys writes more keys than the maximum, while a source runs and before another source
// starts. The first source must keep its previous state until there are fewer keys. The second
// source must publish no services.
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
		t.Error("services or endpoints changed while there are too many keys, want the previous state")
	}
	second := newSource(t, watch.Options{Config: p.config, Patience: time.Millisecond, Timing: hastened(maxKeys(5))})
	if s := follow(t, second).wait("the refusal at the start", refused); s.Services.Len() != 0 || s.Revision != 0 {
		t.Errorf("second source: services = %d, revision = %d, want 0 and 0", s.Services.Len(), s.Revision)
	}
	p.remove("/overrides/web/10.0.0.1")
	f.wait("the return", func(s store.Snapshot) bool { return s.Connected && s.Overrides.Len() == 3 })
}

// TestStateDirMissing runs a source whose directory for the saved state does not exist. A problem
// must report the missing directory, and everything else must work.
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
	const want = "etcd's last good state is not saved: saving etcd.state in state_dir: "
	if p := dir.Problems(); len(p) != 1 || !strings.HasPrefix(p[0].Text, want) {
		t.Errorf("problems = %v, want one that starts with %s", p, want)
	}
}
