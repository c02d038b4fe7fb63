//go:build unix

package tomlfile_test

import (
	"os"
	"syscall"
	"testing"
)

func (w *world) pipe(path string) {
	w.Helper()
	w.do(syscall.Mkfifo(w.path(path)+".new", 0o600))
	w.do(os.Rename(w.path(path)+".new", w.path(path)))
}

// huge replaces the file with a sparse file that exceeds the maximum size, but needs no disk space.
func (w *world) huge(path string) {
	w.Helper()
	w.write(path+".new", "")
	w.do(os.Truncate(w.path(path)+".new", 64<<20+1))
	w.do(os.Rename(w.path(path)+".new", w.path(path)))
}

const (
	irregular = "can't be read: not a regular file"
	tooLarge  = "can't be read: larger than 64 MiB; split it"
)

func TestFilesThatTurnIntoSomethingElse(t *testing.T) {
	w := newWorld(t, map[string]string{
		"vipd.toml":         "store.path = \"services.d\"\n" + service("web", 1),
		"services.d/a.toml": service("a", 2), "services.d/b.toml": service("b", 3), "services.d/c.toml": service("c", 4),
	})
	w.follow()
	w.waitFor("the first state", "a=2 b=3 c=4 web=1")
	w.pipe("services.d/a.toml")
	w.link("services.d/b.toml", os.DevNull)
	w.huge("services.d/c.toml")
	const all = "a=2 b=3 c=4 web=1 "
	const folder = "| DIR/services.d/a.toml: " + irregular + " | DIR/services.d/b.toml: " + irregular + " | DIR/services.d/c.toml: " + tooLarge
	w.waitFor("a pipe, a device and a huge file", all+folder)
	w.pipe("vipd.toml")
	w.waitFor("a pipe for the main file", all+"disconnected | DIR/vipd.toml: "+irregular+" "+folder)
	replaceFile(t, w.path("vipd.toml"), []byte("store.path = \"services.d\"\n"))
	for _, name := range []string{"a", "b", "c"} {
		replaceFile(t, w.path("services.d/"+name+".toml"), []byte(service(name, 5)))
	}
	w.waitFor("files again", "a=5 b=5 c=5")
}

// TestUnreadableFromTheStart starts a source with files that can't be read. The first snapshot's
// problems must name each of these files. The snapshot may be connected only if the main file, and
// the file or folder that its store.path names, can be read.
func TestUnreadableFromTheStart(t *testing.T) {
	const placed = "store.path = \"place\"\n"
	for name, test := range map[string]struct {
		main  string
		lay   func(*world)
		first string
		err   bool
	}{
		"no main file":            {"", func(w *world) { w.do(os.Remove(w.path("vipd.toml"))) }, "disconnected | DIR/vipd.toml: can't be read: no such file or directory", true},
		"main file a pipe":        {"", func(w *world) { w.pipe("vipd.toml") }, "disconnected | DIR/vipd.toml: " + irregular, true},
		"main file a folder":      {"", func(w *world) { w.do(os.Remove(w.path("vipd.toml"))); w.do(os.Mkdir(w.path("vipd.toml"), 0o755)) }, "disconnected | DIR/vipd.toml: can't be read: a folder: name a file in it", true},
		"no place":                {placed, func(*world) {}, "web=1 disconnected | DIR/vipd.toml:1: store.path: DIR/place can't be read: no such file or directory", true},
		"place a lost link":       {placed, func(w *world) { w.link("place", "none") }, "web=1 disconnected | DIR/vipd.toml:1: store.path: DIR/place can't be read: no such file or directory", true},
		"place a pipe":            {placed, func(w *world) { w.pipe("place") }, "web=1 disconnected | DIR/place: " + irregular, true},
		"place a device":          {placed, func(w *world) { w.link("place", "/dev/zero") }, "web=1 disconnected | DIR/place: " + irregular, true},
		"place a huge file":       {placed, func(w *world) { w.huge("place") }, "web=1 disconnected | DIR/place: " + tooLarge, true},
		"a pipe in a folder":      {placed, func(w *world) { w.write("place/b.toml", service("b", 2)); w.pipe("place/a.toml") }, "b=2 web=1 | DIR/place/a.toml: " + irregular, false},
		"a lost link in a folder": {placed, func(w *world) { w.write("place/b.toml", service("b", 2)); w.link("place/a.toml", "none") }, "b=2 web=1 | DIR/place/a.toml: can't be read: no such file or directory", false},
	} {
		t.Run(name, func(t *testing.T) {
			main := test.main
			if main != "" {
				main += service("web", 1)
			}
			w := newWorld(t, map[string]string{"vipd.toml": main})
			test.lay(w)
			w.follow()
			s, n := w.now()
			if got := describe(s); n != 1 || got != w.in(test.first) || (s.Err != nil) != test.err {
				t.Errorf("snapshot %d with error %v =\n%s\nwant %s", n, s.Err, got, w.in(test.first))
			}
		})
	}
}
