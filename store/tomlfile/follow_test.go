package tomlfile_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"vipd/store"
	"vipd/store/tomlfile"
)

type snapshot = store.Snapshot

func (w *world) in(text string) string { return strings.ReplaceAll(text, "DIR", w.dir) }

// TestFilesThatAreWrittenInSteps truncates a file and writes it in steps, while the file stays
// open. The source must not accept a partial text until the file is closed.
func TestFilesThatAreWrittenInSteps(t *testing.T) {
	for _, name := range []string{"vipd.toml", "services.d/a.toml"} {
		t.Run(name, func(t *testing.T) {
			const head = "store.path = \"services.d\"\n"
			w := newWorld(t, map[string]string{"vipd.toml": head, "services.d/o.toml": service("o", 1)})
			steps := []string{"", "[services.a]\nvips = [", "\"10.96.0.2\"]\nports = [{ port = 80 }]\n", service("b", 2)}
			if name == "vipd.toml" {
				steps[0] = head
			}
			w.write(name, steps[0]+service("a", 1)+service("b", 1))
			w.followWith(tomlfile.Options{Main: w.path("vipd.toml")}, func(s *tomlfile.Source) { s.SetGrace(time.Hour) })
			w.waitFor("the first state", "a=1 b=1 o=1")
			file, err := os.Create(w.path(name)) // this truncates the file
			w.do(err)
			for i, text := range steps {
				_, err := file.WriteString(text)
				w.do(err)
				if problems := w.reload(); len(problems) != 1 || !strings.Contains(problems[0].Text, "is being written") {
					t.Errorf("reload after step %d: problems = %v, want one about the file being written", i, problems)
				}
				w.write("services.d/o.toml", service("o", 10+i)) // once this change is seen, the other file has also been checked
				w.until("the next look", func(s snapshot) bool { return strings.HasPrefix(describe(s), fmt.Sprint("a=1 b=1 o=", 10+i)) })
			}
			w.do(file.Close())
			w.waitFor("the whole file", fmt.Sprint("a=2 b=2 o=", 9+len(steps)))
		})
	}
}

// TestAFileThatIsAppendedTo rewrites a file in steps, and closes it after each step, as a script
// might. The source must not remove anything before the file is complete, unless a reload is
// requested. A file that replaces the file must be accepted immediately.
func TestAFileThatIsAppendedTo(t *testing.T) {
	const head, endpoints = "store.path = \"services.d\"\n", "endpoints = [{ address = \"10.0.0.1\" }]\n"
	w := newWorld(t, map[string]string{"vipd.toml": head + service("a", 1) + endpoints + service("b", 1), "services.d/o.toml": service("o", 1)})
	w.followWith(tomlfile.Options{Main: w.path("vipd.toml")}, func(s *tomlfile.Source) { s.SetGrace(time.Hour) })
	w.waitFor("the first state", "a=1 b=1 o=1")
	text := ""
	for i, line := range []string{head, service("a", 2), endpoints, service("b", 2)} {
		last := i == 3
		text += line
		w.write("vipd.toml", text) // overwrites the file in place
		if !last {
			w.write("services.d/o.toml", service("o", 10+i)) // once this change is seen, the other file has also been checked
			s := w.until("the next look", func(s snapshot) bool { return strings.Contains(describe(s), fmt.Sprint("o=", 10+i)) })
			if got := describe(s); !strings.HasPrefix(got, "a=1 b=1") {
				t.Errorf("state after step %d = %s, want a=1 and b=1 unchanged", i, got)
			}
		}
	}
	w.waitFor("the whole file", "a=2 b=2 o=12")
	w.write("other", head+service("a", 3))
	w.do(os.Rename(w.path("other"), w.path("vipd.toml")))
	w.waitFor("another file in its place", "a=3 o=12")
	w.write("vipd.toml", head)
	w.reload()
	w.waitFor("what vipd was told to read", "o=12")
}

// TestAWriterThatHangs writes a file and keeps it open. After the grace time, the source must
// accept the file as it is.
func TestAWriterThatHangs(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": service("a", 1) + service("b", 1)})
	w.followWith(tomlfile.Options{Main: w.path("vipd.toml")}, func(s *tomlfile.Source) { s.SetGrace(200 * time.Millisecond) })
	file, err := os.Create(w.path("vipd.toml"))
	w.do(err)
	defer func() { _ = file.Close() }()
	_, err = file.WriteString(service("a", 2))
	w.do(err)
	w.waitFor("what there is", "a=2")
}

// TestAnEmptyMainFile empties the main file, except for comments. The previous content must stay in
// use, with a problem, until a reload allows an empty file.
func TestAnEmptyMainFile(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "zone = \"z\"\n" + service("a", 1)})
	w.followWith(tomlfile.Options{Main: w.path("vipd.toml")}, func(s *tomlfile.Source) { s.SetGrace(100 * time.Millisecond) })
	const problem = "a=1 | DIR/vipd.toml: is empty, so its previous content stays in use; if it is meant to be empty, run vipctl reload --allow-empty"
	for _, text := range []string{"", "# nothing\n"} {
		w.write("vipd.toml", text)
		w.waitFor("a problem", problem)
		if problems := w.reload(); len(problems) != 1 {
			t.Errorf("reload without AllowEmpty: problems = %v, want one", problems)
		}
		if s := w.waitFor("a reload that changes nothing", problem); s.Settings == nil || s.Settings.Tree()["zone"] != "z" {
			t.Error("a reload without AllowEmpty removed the settings")
		}
	}
	if problems := w.reloadAs(tomlfile.Reload{AllowEmpty: true}); len(problems) != 0 {
		t.Errorf("reload with AllowEmpty: problems = %v, want none", problems)
	}
	if s := w.waitFor("nothing", ""); len(s.Settings.Tree()) != 0 {
		t.Errorf("reload with AllowEmpty: settings = %v, want none", s.Settings.Tree())
	}
	w.write("vipd.toml", service("a", 1))
	w.waitFor("a service again", "a=1")
	w.write("vipd.toml", "")
	w.waitFor("that permission was for one reload", problem)
}

func TestReplacedFiles(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "store.path = \"services.d\"\n", "services.d/a.toml": service("a", 1)})
	w.follow()
	w.waitFor("the first state", "a=1")
	for range 3 {
		replaceFile(t, w.path("services.d/a.toml"), []byte(service("a", 2)))
		w.waitFor("a renamed file", "a=2")
		w.do(os.Rename(w.path("services.d/a.toml"), w.path("services.d/a.toml~"))) // as vim does with backupcopy=no
		w.write("services.d/a.toml", service("a", 3))
		w.waitFor("a file that was moved away and written anew", "a=3")
		replaceFile(t, w.path("vipd.toml"), []byte("store.path = \"services.d\"\n"+service("web", 4)))
		w.waitFor("the main file, replaced", "a=3 web=4")
		replaceFile(t, w.path("vipd.toml"), []byte("store.path = \"services.d\"\n"))
		w.waitFor("the main file, replaced again", "a=3")
	}
}

func TestLinksAreSwapped(t *testing.T) {
	w := newWorld(t, map[string]string{
		"releases/1/vipd.toml":                  "store.path = \"conf/services\"\n" + service("web", 1),
		"releases/1/services/a.toml":            service("a", 1),
		"releases/2/vipd.toml":                  "store.path = \"conf/services\"\n" + service("web", 2),
		"releases/2/services/a.toml":            service("a", 2),
		"releases/2/services/b.toml":            service("b", 2),
		"etc/conf.txt":                          "",
		"map/..v1/x.toml":                       service("x", 1),
		"map/..v2/x.toml":                       service("x", 2),
		"releases/1/services/not-there-in-2.md": "",
	})
	w.do(os.Symlink("releases/1", w.path("current")))
	w.do(os.Symlink("../current", w.path("etc/conf")))
	w.do(os.Symlink("conf/vipd.toml", w.path("etc/vipd.toml")))
	w.followWith(tomlfile.Options{Main: w.path("etc/vipd.toml")}, nil)
	for range 3 {
		w.waitFor("release 1", "a=1 web=1")
		w.link("current", w.path("releases/2"))
		w.waitFor("release 2", "a=2 b=2 web=2")
		w.write("releases/2/services/b.toml", service("b", 9))
		w.waitFor("a change behind the links", "a=2 b=9 web=2")
		w.write("releases/2/services/b.toml", service("b", 2))
		w.link("current", "releases/1")
	}
	w.waitFor("release 1", "a=1 web=1")
	w.write("releases/2/services/b.toml", service("b", 9))
	w.wantUnchanged("a change in the release that is not current", 100*time.Millisecond)

	w.do(os.Symlink("..v1", w.path("map/..data")))
	w.do(os.Symlink("..data/x.toml", w.path("map/x.toml")))
	w.write("releases/1/vipd.toml", "store.path = \""+w.path("map")+"\"\n")
	w.waitFor("a folder without the services of the former one", "x=1")
	w.do(os.Symlink("/nowhere/y.toml", w.path("map/y.toml")))
	dangling := " | DIR/map/y.toml: can't be read: no such file or directory"
	w.waitFor("a folder of links", "x=1"+dangling)
	for range 3 {
		w.link("map/..data", "..v2")
		w.waitFor("the other version", "x=2"+dangling)
		w.link("map/..data", "..v1")
		w.waitFor("the first version", "x=1"+dangling)
	}
	w.write("map/..v1/x.toml", service("x", 3))
	w.waitFor("a change in a linked file", "x=3"+dangling)
	w.do(os.Remove(w.path("map/y.toml")))
	w.waitFor("the removal of the link that leads nowhere", "x=3")
}

func TestAFolderAppearsLater(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "store.path = \"deep/er/services.d\"\n" + service("web", 1)})
	w.follow()
	missing := " disconnected | DIR/vipd.toml:1: store.path: DIR/deep/er/services.d can't be read: no such file or directory"
	w.waitFor("what is there", "web=1"+missing)
	w.write("deep/other", "")
	w.write("deep/er/services.d/a.toml", service("a", 2))
	w.waitFor("the folder", "a=2 web=1")
	w.do(os.Rename(w.path("deep/er/services.d"), w.path("deep/er/away")))
	w.waitFor("the last good state of a folder that is gone", "a=2 web=1"+missing)
	w.write("deep/er/services.d/b.toml", service("b", 3))
	w.waitFor("another folder of that name", "b=3 web=1")
	w.write("deep/er/services.d/b.toml", service("b", 4))
	w.waitFor("a change there", "b=4 web=1")
	w.write("deep/er/away/a.toml", service("a", 5))
	w.wantUnchanged("a change in the folder that was moved away", 100*time.Millisecond)
	w.do(os.RemoveAll(w.path("deep/er/services.d")))
	w.until("the removal of the folder", func(s snapshot) bool { return !s.Connected && s.Err != nil })
	w.do(os.Rename(w.path("deep/er/away"), w.path("deep/er/services.d")))
	w.waitFor("the first folder again", "a=5 web=1")
	w.write("deep/new/services.d/c.toml", service("c", 6))
	w.do(os.Rename(w.path("deep/er"), w.path("deep/old")))
	w.do(os.Rename(w.path("deep/new"), w.path("deep/er")))
	w.waitFor("another parent", "c=6 web=1")
}

func TestTheMainFileAppearsLater(t *testing.T) {
	w := newWorld(t, nil)
	w.follow()
	missing := "disconnected | DIR/vipd.toml: can't be read: no such file or directory"
	w.waitFor("nothing", missing)
	w.write("vipd.toml", service("web", 1))
	w.waitFor("the file", "web=1")
	w.do(os.Remove(w.path("vipd.toml")))
	w.waitFor("the last good state", "web=1 "+missing)
	w.write("vipd.toml", service("web", 1))
	w.waitFor("the file again", "web=1")
}

// TestWithoutNotifications makes a source lose notifications about changed files in several ways.
// The source must still find the changes.
func TestWithoutNotifications(t *testing.T) {
	for name, lose := range map[string]func(*world, *fsnotify.Watcher){
		"there are none":  nil,
		"they end":        func(w *world, f *fsnotify.Watcher) { w.do(f.Close()) },
		"they are lost":   forget,
		"nobody tells us": forget,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, map[string]string{"vipd.toml": "store.path = \"services.d\"\n", "services.d/a.toml": service("a", 1)})
			var watcher *fsnotify.Watcher
			poll := time.Hour
			if name == "nobody tells us" {
				poll = 50 * time.Millisecond
			}
			w.followWith(tomlfile.Options{Main: w.path("vipd.toml"), Log: slog.New(slog.DiscardHandler)}, func(s *tomlfile.Source) {
				s.SetPoll(poll)
				s.SetOpen(func() (_ *fsnotify.Watcher, err error) {
					if lose == nil {
						return nil, errors.New("none left")
					}
					watcher, err = fsnotify.NewWatcher()
					return watcher, err
				})
			})
			w.waitFor("the first state", "a=1")
			if lose != nil {
				lose(w, watcher)
			}
			tell := func() {
				if name == "they are lost" {
					watcher.Errors <- fsnotify.ErrEventOverflow
				}
			}
			w.write("services.d/a.toml", service("a", 2))
			w.write("services.d/b.toml", service("b", 3))
			tell()
			w.waitFor("the change", "a=2 b=3")
			if name == "they are lost" {
				w.write("services.d/b.toml", service("b", 4))
				w.waitFor("that notifications are back", "a=2 b=4")
				return
			}
			w.do(os.Remove(w.path("services.d/a.toml")))
			w.waitFor("the removal", "b=3")
		})
	}
}

// forget stops all notifications, without an error.
func forget(w *world, f *fsnotify.Watcher) {
	for _, path := range f.WatchList() {
		w.do(f.Remove(path))
	}
}

// TestManyFilesOfLater creates many files whose modification times are in the future, as on a file
// server whose clock is ahead. All of them must be read.
func TestManyFilesOfLater(t *testing.T) {
	files := map[string]string{"vipd.toml": "[store]\npath = \"services.d\"\n"}
	write := func(folder string, vip int) {
		for i := range 60 {
			files[fmt.Sprintf("%s/%d.toml", folder, i)] = service(fmt.Sprint("s", i), vip)
		}
	}
	write("one", 1)
	write("two", 2)
	w := newWorld(t, files)
	for path := range files {
		w.do(os.Chtimes(w.path(path), time.Time{}, time.Now().Add(time.Hour)))
	}
	w.link("services.d", "one")
	w.follow()
	all := func(vip byte) func(store.Snapshot) bool {
		return func(s store.Snapshot) bool {
			for _, service := range s.Services.All() {
				if service.VIPs[0].As4()[3] != vip {
					return false
				}
			}
			return s.Services.Len() == 60
		}
	}
	w.until("the first files", all(1))
	w.link("services.d", "two")
	w.until("those in their place", all(2))
}
