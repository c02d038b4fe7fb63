package tomlfile_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"vipd/store/tomlfile"
	"vipd/test/wait"
)

// TestFieldLines loads services from texts with random layouts. For each field, a service's Origin
// must return the same line as Where.
func TestFieldLines(t *testing.T) {
	for seed := range uint64(wait.Soak(60, 300)) {
		r := rand.New(rand.NewPCG(seed, 1))
		text := scattered(r)
		path := filepath.Join(t.TempDir(), "services.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		read := tomlfile.Load(path)
		if len(read.Snapshot.Problems) > 0 || read.Snapshot.Services.Len() != 3 {
			t.Fatalf("seed %d: services = %d, problems = %v, want 3 and none; text:\n%s", seed, read.Snapshot.Services.Len(), read.Snapshot.Problems, text)
		}
		doc := parse(t, path, text)
		for name, s := range read.Snapshot.Services.All() {
			for _, field := range []string{
				"", "vips", "vips[0]", "vips[1]", "scheduler", "ports", "ports[0]", "ports[0].port", "ports[1].node_port", "ports[1].protocol",
				"endpoints", "endpoints[0].address", "endpoints[1]", "endpoints[1].weight", "endpoints[12].address", "endpoints[1].ports.a",
				"health", "health.type", "health.panic_threshold", "health.interval", "slow_start", "nothing", "nothing[3].at.all",
			} {
				want := doc.Where(strings.TrimSuffix("services."+string(name)+"."+field, "."))
				if got := s.Origin.At(field); got != want {
					t.Fatalf("seed %d: field %s of service %s: line = %d, want %d; text:\n%s", seed, field, name, got.Line, want.Line, text)
				}
			}
		}
	}
}

// scattered returns the text of three services. Each service's tables are in one or several pieces,
// with other services' tables in between.
func scattered(r *rand.Rand) string {
	var b strings.Builder
	some := func(texts ...string) { b.WriteString(texts[r.IntN(len(texts))]) }
	space := func() { some("", "", "\n", "# vips = 7\n\n") }
	var later []string
	for i, name := range []string{"a", "a1", "web"} {
		space()
		fmt.Fprintf(&b, "[services.%s]\n", name)
		space()
		fmt.Fprintf(&b, "vips = [\"10.96.0.%d\",", i+1)
		some(" ", "\n", "\n# more\n ")
		fmt.Fprintf(&b, "\"10.96.1.%d\"]\n", i+1)
		some("", "scheduler = \"rr\"\n", "slow_start = \"5s\"\nscheduler = \"wrr\"\n")
		some("ports = [{ port = 80, name = \"a\" }, { port = 81, name = \"b\" }]\n",
			"ports = [\n  { port = 80, name = \"a\" },\n\n  { port = 81, name = \"b\", protocol = \"udp\" } ]\n")
		some("", "health = { type = \"tcp\",  interval = \"2s\" }\n", "health.type = \"tcp\"\n\nhealth.panic_threshold = 50\n")
		piece := ""
		for e := range r.IntN(14) {
			piece += fmt.Sprintf("[[services.%s.endpoints]]\naddress = \"192.168.1.%d\"\n", name, e+1)
			if e%2 == 1 {
				piece += "\nports = { a = 8080 }\nweight = 7\n"
			}
		}
		later = append(later, piece)
	}
	r.Shuffle(len(later), func(i, j int) { later[i], later[j] = later[j], later[i] })
	for _, piece := range later {
		space()
		b.WriteString(piece)
	}
	return b.String()
}

// TestFieldLinesAreShared loads services with the same layout. The line numbers of their fields,
// relative to the service, must be stored only once.
func TestFieldLinesAreShared(t *testing.T) {
	var b strings.Builder
	for i := range 3 {
		fmt.Fprintf(&b, "\n[services.s%d]\nvips = [\"10.96.0.%d\"]\nports = [{ port = 80 }]\nendpoints = [\n  { address = \"192.168.1.%d\" },\n]\n", i, i+1, i+1)
	}
	path := filepath.Join(t.TempDir(), "services.toml")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	services := tomlfile.Load(path).Snapshot.Services
	first, last := services.At("s0").Origin, services.At("s2").Origin
	if first.Fields == "" || unsafe.StringData(string(first.Fields)) != unsafe.StringData(string(last.Fields)) {
		t.Errorf("field lines %q and %q are stored separately, want shared memory", first.Fields, last.Fields)
	}
	if got := last.At("endpoints[0].address"); got.Line != 20 || got.Fields != "" {
		t.Errorf("Origin of the third service's endpoint = %+v, want line 20", got)
	}
}

// TestTablesThatTakeTurns loads a text in which the endpoints of two services alternate. The line
// numbers must not need much more memory than if each service's endpoints were in one piece.
func TestTablesThatTakeTurns(t *testing.T) {
	allocated := func(turns bool) uint64 {
		var a, b strings.Builder
		second := &b
		if turns {
			second = &a
		}
		a.WriteString(service("a", 1) + service("b", 2))
		for i := range 2000 {
			fmt.Fprintf(&a, "[[services.a.endpoints]]\naddress = \"192.168.%d.%d\"\n", i/250, 1+i%250)
			fmt.Fprintf(second, "[[services.b.endpoints]]\naddress = \"192.168.%d.%d\"\n", i/250, 1+i%250)
		}
		text := []byte(a.String() + b.String())
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		read := tomlfile.LoadText("f.toml", text)
		runtime.ReadMemStats(&after)
		if len(read.Snapshot.Problems) > 0 || len(read.Snapshot.Services.At("b").Endpoints) != 2000 {
			t.Fatalf("problems = %v, want none, and 2000 endpoints of service b", read.Snapshot.Problems)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	if one, turns := allocated(false), allocated(true); turns > 2*one {
		t.Errorf("memory for alternating endpoints = %d kB, want at most twice the %d kB for endpoints in one piece", turns>>10, one>>10)
	}
}
