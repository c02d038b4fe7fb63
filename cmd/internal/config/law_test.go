package config_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/store"
	"vipd/store/statedir"
	"vipd/store/tomlfile"
	"vipd/test/wait"
)

// The test edits these files. They contain services in each form that TOML allows, next to tables
// that could absorb part of a service after a mistake.
const (
	lawMain = `# The daemon's own file.
mode = "userspace"
[store]
path = "services.d"
[defaults]
scheduler = "lc"
health = { type = "tcp", interval = "5s" }
[api]
http = "127.0.0.1:9890"
[sync]
min_interval = "1s"
# The web.
[services.web]
vips = ["10.96.0.10", "fd00:96::10"]
endpoints = [{ address = "192.168.1.11", weight = 2 },
  { address = "192.168.1.12" }] # two of them
[[services.web.ports]]
name = "http"
port = 80
[[services.web.ports]]
name = "https"
port = 443
[services.web.health]
type = "http"
path = "/healthz"
[services.web.health.headers]
Accept = "text/plain"
# Mail, which follows a table with free keys.
[services.mail]
vips = ["10.96.0.11"]
ports = [{ name = "smtp", port = 25 }]
[[services.mail.endpoints]]
address = "192.168.1.21"
[services.mail.endpoints.ports]
smtp = 2525
# Names.
[services.resolver]
vips = ["10.96.0.12"]
ports = [{ port = 53, protocol = "udp" }]
health = { type = "udp", send = """
?
""", expect = '''
!''' }
[vips."10.96.0.12"]
hold = "each"
`
	lawFolder = `[services]
database = { vips = ["10.96.0.13"], ports = [{ port = 5432 }], endpoints = [{ address = "192.168.1.31" }] }
queue.vips = ["10.96.0.14"]
queue.ports = [{ port = 5672 }]
# The last one.
[services.archive]
vips = ["10.96.0.15"]
ports = [{ port = 8080, target_port = 80 }]
source_ranges = ["10.0.0.0/8"]
`
)

// edit is a change to one of the files. text replaces the bytes between the offsets from and to.
type edit struct {
	file     int
	from, to int
	text     string
}

// randomEdit returns an edit that deletes, inserts or replaces a random character or line.
func randomEdit(r *rand.Rand, files []string) edit {
	e := edit{file: r.IntN(len(files))}
	text := files[e.file]
	e.from = r.IntN(len(text))
	e.to = e.from + 1
	const bytes = "\n\r\t \"\"''[[]]{}##==..,,\\-_aswv019\x00\xff"
	e.text = string(bytes[r.IntN(len(bytes))])
	if r.IntN(2) == 0 { // a line
		e.from = strings.LastIndex(text[:e.from], "\n") + 1
		e.to = e.from + strings.Index(text[e.from:], "\n") + 1
		lines := append(strings.SplitAfter(lawMain+lawFolder, "\n"), "[services.new]\n", "[[services]]\n", "[service.web]\n", "'''\n", "\"\"\"\n", "x = 1\n", "é\n")
		e.text = lines[r.IntN(len(lines)-1)]
	}
	switch r.IntN(3) {
	case 0:
		e.text = ""
	case 1:
		e.to = e.from
	}
	return e
}

func (e edit) apply(text string) string { return text[:e.from] + e.text + text[e.to:] }

// String describes the edit in failure messages.
func (e edit) String() string {
	return fmt.Sprintf("file %d: %d to %d become %q", e.file, e.from, e.to, e.text)
}

// owner returns the service whose definition contains the byte at an offset, or "". inServices
// reports whether the byte is in a services table. A comment belongs to the preceding table.
func owner(text string, at int) (service string, inServices bool) {
	section, end := "", 0
	for line := range strings.Lines(text) {
		if end > at {
			break
		}
		end += len(line)
		switch word := strings.Trim(line, "[] \n"); {
		case strings.HasPrefix(line, "[services.") || strings.HasPrefix(line, "[[services."):
			service, section = strings.Split(word, ".")[1], "services"
		case strings.HasPrefix(line, "["):
			service, section = "", word
		case section == "services" && (strings.HasPrefix(line, "database") || strings.HasPrefix(line, "queue")):
			service = line[:strings.IndexAny(line, " .")]
		}
	}
	return service, section == "services"
}

// touched returns the services whose definitions the edit changes. An inserted line belongs to the
// preceding table. If the edit removes the end of a line, the next line also changes. A table's
// heading does not count as changed, because vipd reports an error if a heading is lost.
func (e edit) touched(text string) (services [2]string, inServices bool) {
	at := e.from
	if e.from == e.to && e.from > 0 && strings.HasSuffix(e.text, "\n") {
		at--
	}
	services[0], inServices = owner(text, at)
	if joins := e.to > e.from && text[e.to-1] == '\n' && e.to-e.from == 1 && e.text != "\n"; joins && e.to < len(text) && text[e.to] != '[' {
		services[1], _ = owner(text, e.to)
	}
	return services, inServices
}

// lawful runs the file store on a directory, and records the last snapshot that it published.
type lawful struct {
	dir    string
	source *tomlfile.Source
	mu     sync.Mutex
	last   store.Snapshot
}

func (l *lawful) publish(s store.Snapshot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = s
}

func (l *lawful) options(kept *statedir.Dir) tomlfile.Options {
	return tomlfile.Options{Main: filepath.Join(l.dir, "vipd.toml"), StateDir: kept, Check: func(d store.Document) []balancer.Problem {
		_, problems := config.Decode(d)
		return problems
	}}
}

func (l *lawful) save(t testing.TB, files []string) {
	for i, name := range []string{"vipd.toml", "services.d/a.toml"} {
		if err := os.WriteFile(filepath.Join(l.dir, name), []byte(files[i]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// reload reloads the files and returns the resulting snapshot.
func (l *lawful) reload(t testing.TB) store.Snapshot {
	problems, err := l.source.Reload(t.Context())
	if err != nil || slices.ContainsFunc(problems, func(p balancer.Problem) bool { return strings.Contains(p.Text, "is being written") }) {
		t.Fatal(problems, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// restarted runs the store with the files in good, and then simulates a restart of vipd with the
// files in files. It returns the first snapshot after the restart.
func (l *lawful) restarted(t testing.TB, good, files []string) (s store.Snapshot) {
	for _, texts := range [][]string{good, files} {
		l.save(t, texts)
		ctx, cancel := context.WithCancel(t.Context())
		kept := statedir.New(l.dir, func() {})
		if err := tomlfile.New(l.options(kept)).Watch(ctx, func(last store.Snapshot) { s = last; cancel() }); err != nil {
			t.Fatal(err)
		}
		if err := kept.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// faulty reports whether a snapshot has a problem whose severity is error.
func faulty(s store.Snapshot) bool {
	_, problems := config.Decode(s.Settings)
	return slices.ContainsFunc(slices.Concat(problems, s.Problems), func(p balancer.Problem) bool { return p.Severity == balancer.SeverityError })
}

// missing compares a service before an edit (was) with the same service after the edit (is). It
// describes a part that is missing after the edit, or returns "". If whole is true, any difference
// counts as missing.
func missing(was, is *balancer.Service, whole bool) string {
	switch {
	case is == nil:
		return "the service"
	case whole && !reflect.DeepEqual(balancer.EncodeService(was), balancer.EncodeService(is)):
		return fmt.Sprintf("%v, which is %v", balancer.EncodeService(was), balancer.EncodeService(is))
	case !slices.Equal(was.VIPs, is.VIPs):
		return "its addresses"
	}
	for _, p := range was.Ports {
		if !slices.Contains(is.Ports, p) {
			return fmt.Sprint("port ", p)
		}
	}
	for _, e := range was.Endpoints {
		if !slices.ContainsFunc(is.Endpoints, func(o balancer.Endpoint) bool { return o.Address == e.Address && o.Weight == e.Weight }) {
			return fmt.Sprint("endpoint ", e.Address)
		}
	}
	return ""
}

// TestSingleEdits makes random edits to valid files. If an edit is inside a service or causes an
// error, the other services must remain, even after a restart. After the edit is undone, all
// services must be unchanged.
func TestSingleEdits(t *testing.T) {
	l := &lawful{dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(l.dir, "services.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	good := []string{lawMain, lawFolder}
	l.save(t, good)
	l.source = tomlfile.New(l.options(nil))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = l.source.Watch(ctx, l.publish) })
	defer running.Wait()
	defer cancel()
	before := l.reload(t)
	if before.Services.Len() != 6 || faulty(before) {
		t.Fatalf("valid files: problems = %v, want no error, and 6 services", before.Problems)
	}
	r := rand.New(rand.NewPCG(39, 1))
	counts := map[string]int{}
	began := time.Now()
	for i := range wait.Soak(1000, 10_000) {
		e := randomEdit(r, good)
		files := slices.Clone(good)
		files[e.file] = e.apply(good[e.file])
		touched, inServices := e.touched(good[e.file])
		check := func(when string, s store.Snapshot) {
			if !faulty(s) && !inServices {
				counts["neither in a service nor an error"]++
				return
			}
			counts[when]++
			for name, was := range before.Services.All() {
				if slices.Contains(touched[:], string(name)) {
					continue
				}
				if what := missing(was, s.Services.At(name), !inServices); what != "" {
					t.Errorf("edit %d, %s (touches %q; %s): service %s lost %s, want it unchanged; problems = %v", i, e, touched, when, name, what, s.Problems)
				}
			}
		}
		l.save(t, files)
		check("reload", l.reload(t))
		if i%25 == 0 {
			other := &lawful{dir: t.TempDir()}
			if err := os.Mkdir(filepath.Join(other.dir, "services.d"), 0o755); err != nil {
				t.Fatal(err)
			}
			check("restart", other.restarted(t, good, files))
		}
		l.save(t, good)
		if s := l.reload(t); len(s.Problems) > 0 || !maps.Equal(texts(before), texts(s)) {
			t.Fatalf("edit %d, %s: after undoing it, services = %v, problems = %v; want the services from before the edit, and no problems", i, e, texts(s), s.Problems)
		}
		if t.Failed() {
			break
		}
	}
	t.Log(counts, time.Since(began))
	if counts["reload"] < 500 || counts["restart"] < 20 {
		t.Errorf("checks = %v, want at least 500 after reloads and 20 after restarts", counts)
	}
}

func texts(s store.Snapshot) map[balancer.Name]string {
	all := map[balancer.Name]string{}
	for name, service := range s.Services.All() {
		var b bytes.Buffer
		fmt.Fprint(&b, balancer.EncodeService(service))
		all[name] = b.String()
	}
	return all
}
