package tomlfile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/store"
)

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestLoadTextWithPlace loads a text in place of the main file's text. The text's [store].path is
// the main file's folder. The result must contain the services from the text and from the other
// file in the folder, but not those in the main file.
func TestLoadTextWithPlace(t *testing.T) {
	dir := t.TempDir()
	main := filepath.Join(dir, "vipd.toml")
	write(t, main, "[services.old]\nvips = [\"10.0.0.1\"]\nports = [{ port = 80 }]\n")
	write(t, filepath.Join(dir, "b.toml"), "[services.b]\nvips = [\"10.0.0.2\"]\nports = [{ port = 80 }]\n")
	read := LoadText(main, []byte("[store]\npath = \".\"\n[services.new]\nvips = [\"10.0.0.1\"]\nports = [{ port = 80 }]\n"))
	var names []string
	for name := range read.Snapshot.Services.Keys() {
		names = append(names, string(name))
	}
	if want := []string{"b", "new"}; !slices.Equal(names, want) || len(read.Snapshot.Problems) > 0 {
		t.Errorf("services = %v, problems = %v; want %v and none", names, read.Snapshot.Problems, want)
	}
}

// TestChangesWithinATickAreSeen changes a file again as soon as it has been read, without changing
// its length. Even the modification time may stay the same, because clocks have a limited
// resolution. Each change must be detected.
func TestChangesWithinATickAreSeen(t *testing.T) {
	dir := t.TempDir()
	l := newLoader("", dir)
	for i := range 300 {
		weight := 100 + i
		write(t, filepath.Join(dir, "a.toml"), fmt.Sprintf("[services.a]\nvips = [\"10.0.0.1\"]\nports = [{ port = %d }]\n", weight))
		l.load(look{all: true})
		if got := int(l.state.Services.At("a").Ports[0].Port); got != weight {
			t.Fatalf("round %d: port = %d, want %d", i, got, weight)
		}
	}
}

// TestSettledFilesAreNotRead loads an unchanged file again. If the file had been unchanged for a
// long time when it was first read, it must not be read again until its attributes change.
func TestSettledFilesAreNotRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.toml")
	write(t, path, "[services.a]\nvips = [\"10.0.0.1\"]\nports = [{ port = 80 }]\n")
	l := newLoader("", dir)
	l.load(look{all: true})
	old := l.merge.files[path]
	l.load(look{all: true})
	if l.merge.files[path] == old {
		t.Error("a file that was written just before its first read was not read again")
	}
	aged := *l.merge.files[path]
	aged.read = aged.read.Add(settled)
	l.merge.files[path] = &aged
	l.load(look{all: true})
	if l.merge.files[path] != &aged {
		t.Error("a file that was unchanged for long before its first read was read again")
	}
	l.load(look{all: true, forced: true})
	if l.merge.files[path] == &aged {
		t.Error("a forced load did not read the file again")
	}
	later := aged
	later.read = later.read.Add(time.Hour)
	l.merge.files[path] = &later
	write(t, path, "[services.a]\nvips = [\"10.0.0.1\"]\nports = [{ port = 81 }]\n")
	if !l.load(look{all: true}) || l.state.Services.At("a").Ports[0].Port != 81 {
		t.Error("a changed file was not read again")
	}
}

// TestPiecesOfAFile loads partial texts of a file, as if a script rewrites it line by line. Nothing
// may be removed while the text is partial. A file that replaces the file, or a text that is
// unchanged for the grace time, must be accepted completely.
func TestPiecesOfAFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "vipd.toml")
	pieces := []string{
		"store.path = \"o.toml\"\n", "defaults.scheduler = \"lc\"\n", "defaults.snat = \"always\"\n",
		"[services.a]\nvips = [\"10.0.0.1\"]\n[[services.a.ports]]\nname = \"a\"\nport = 80\n",
		"[[services.a.ports]]\nname = \"b\"\nport = 81\n",
		"[[services.a.endpoints]]\naddress = \"10.1.0.1\"\n", "[[services.a.endpoints]]\naddress = \"10.1.0.2\"\n",
		"draining = true\n",
		"[services.a.health]\ntype = \"http\"\n", "path = \"/ok\"\n", "[vips.\"10.0.0.2\"]\n", "hold = \"one\"\n",
	}
	write(t, filepath.Join(dir, "o.toml"), "[services.o]\nvips = [\"10.0.0.2\"]\nports = [{ port = 80 }]\n")
	l := newLoader(path, "")
	l.grace = time.Hour
	expect := func(when, want string) {
		t.Helper()
		l.load(look{all: true})
		if got := inPieces(l.state); got != want {
			t.Errorf("%s: content = %s; want %s", when, got, want)
		}
	}
	setTime := func(from time.Duration) {
		t.Helper()
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(from)); err != nil {
			t.Fatal(err)
		}
	}
	const rest = ", drains, checks of /ok, 10.0.0.2 for one, o by lc, SNAT always"
	const before, after = "10.0.0.1, 2 ports, 2 endpoints" + rest, "10.0.0.3, 2 ports, 2 endpoints" + rest
	write(t, path, strings.Join(pieces, ""))
	expect("at first", before)
	pieces[3] = strings.Replace(pieces[3], "10.0.0.1", "10.0.0.3", 1)
	for i := range pieces {
		write(t, path, strings.Join(pieces[:i], ""))
		expect(fmt.Sprintf("the first %d pieces", i), before)
		write(t, path, strings.Join(slices.Delete(slices.Clone(pieces), i, i+1), ""))
		expect(fmt.Sprintf("all but piece %d", i), before)
	}
	write(t, path, strings.Join(pieces, ""))
	expect("at the end", after)
	write(t, path, strings.Join(slices.Delete(slices.Clone(pieces), 6, 7), ""))
	expect("without an endpoint", after)
	setTime(-2 * l.grace)
	expect("without an endpoint, and quiet", "10.0.0.3, 2 ports, 1 endpoints"+rest)
	write(t, path, strings.Join(pieces[:5], ""))
	setTime(2 * l.grace)
	expect("half, and from the future", "10.0.0.3, 2 ports, 1 endpoints"+rest)
	l.grace = time.Nanosecond
	expect("half, and from the future, after a while", "10.0.0.3, 2 ports, 0 endpoints, o by lc, SNAT always")
	l.grace = time.Hour
	write(t, path+".new", pieces[3])
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	expect("another file in its place", "10.0.0.3, 1 ports, 0 endpoints")
}

// inPieces describes the services and VIPs that TestPiecesOfAFile loads. Service o shows the
// defaults.
func inPieces(s store.Snapshot) string {
	a := s.Services.At("a")
	text := fmt.Sprintf("%s, %d ports, %d endpoints", a.VIPs[0], len(a.Ports), len(a.Endpoints))
	if n := len(a.Endpoints); n > 0 && a.Endpoints[n-1].Draining {
		text += ", drains"
	}
	if a.Health != nil {
		text += ", checks of " + a.Health.Path
	}
	for addr, vip := range s.VIPs.All() {
		text += fmt.Sprintf(", %s for %s", addr, vip.Hold)
	}
	if o := s.Services.At("o"); o != nil {
		text += fmt.Sprintf(", o by %s, SNAT %s", o.Scheduler, o.SNAT)
	}
	return text
}

// TestTextsAreNotKept copies the content of a document with an interner, so the document's text
// need not stay in memory. The copy must be equal, and the interner must have copied each different
// string.
func TestTextsAreNotKept(t *testing.T) {
	in := interner{}
	text := "[services.a]\nx = [{ y = \"zzz\" }]\n"
	doc, problems := Parse("f", []byte(text))
	if doc == nil {
		t.Fatal(problems)
	}
	own := in.table(doc.Tree())
	if got, want := fmt.Sprint(own), fmt.Sprint(doc.Tree()); got != want {
		t.Errorf("copy of the document = %s, want %s", got, want)
	}
	if len(in) != 5 {
		t.Errorf("copied strings = %d, want 5: %v", len(in), in)
	}
}

func TestChain(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	do := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	do(os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o755))
	do(os.Symlink("b/c", filepath.Join(dir, "a/rel")))
	do(os.Symlink(dir+"/a/rel/../c", filepath.Join(dir, "abs")))
	do(os.Symlink("loop", filepath.Join(dir, "loop")))
	for path, want := range map[string]struct {
		spots []spot
		real  string
	}{
		"a/b/c":       {[]spot{{"a/b", "c"}}, "a/b/c"},
		"a/./b/../b":  {[]spot{{"a", "b"}}, "a/b"},
		"a/rel":       {[]spot{{"a", "rel"}, {"a/b", "c"}}, "a/b/c"},
		"a/rel/no/x":  {[]spot{{"a", "rel"}, {"a/b/c", "no"}}, ""},
		"a/none/deep": {[]spot{{"a", "none"}}, ""},
	} {
		spots, real := chain(dir + "/" + path)
		var got []spot
		for _, s := range spots {
			folder, err := filepath.Rel(dir, s.folder)
			do(err)
			if folder == "." {
				folder = ""
			}
			got = append(got, spot{folder, s.name})
		}
		wantReal := ""
		if want.real != "" {
			wantReal = filepath.Join(dir, want.real)
		}
		if fmt.Sprint(got) != fmt.Sprint(want.spots) || real != wantReal {
			t.Errorf("chain(%s) = %v, target %s\nwant %v, target %s", path, got, real, want.spots, wantReal)
		}
	}
	if _, real := chain(filepath.Join(dir, "abs")); real != filepath.Join(dir, "a/b/c") {
		t.Errorf("target of chain(abs) = %s, want %s", real, filepath.Join(dir, "a/b/c"))
	}
	if spots, real := chain(filepath.Join(dir, "loop")); real != "" || len(spots) == 0 {
		t.Errorf("chain of a loop: target = %q, spots = %v, want no target and at least one spot", real, spots)
	}
}
