package tomlfile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/storetest"
	"vipd/store/tomlfile"
)

// TestSource runs the test suite for sources with each layout of services in files, and with each
// way to write files.
func TestSource(t *testing.T) {
	if testing.Short() {
		t.Skip("waits half a minute for writers of files; skipped with -short")
	}
	for layout, file := range map[string]string{"folder": "", "main file": "vipd.toml", "one file": "services.toml"} {
		for way, write := range map[string]func(testing.TB, string, []byte){"rename": replaceFile, "truncate": rewriteFile} {
			t.Run(layout+", "+way, func(t *testing.T) {
				storetest.Run(t, func(t *testing.T) storetest.Place {
					p := &place{t: t, dir: t.TempDir(), file: file, write: write, all: map[balancer.Name]map[string]any{}}
					p.prepare()
					return p
				})
			})
		}
	}
}

// grace is the grace time of the sources (see SetGrace).
const grace = 100 * time.Millisecond

// place is a directory with the definitions of services. Either all definitions are in one file, or
// each has its own file in the directory services.d.
type place struct {
	t         testing.TB
	dir, file string
	write     func(testing.TB, string, []byte)
	all       map[balancer.Name]map[string]any
	paused    bool
}

// Paused reports whether a write took so long that a source may have accepted a partial file, as
// can happen on a busy machine.
func (p *place) Paused() bool { return p.paused }

// save writes a file, and sets paused if the write takes too long.
func (p *place) save(path string, text []byte) {
	began := time.Now()
	p.write(p.t, path, text)
	p.paused = p.paused || time.Since(began) > grace/2
}

func (p *place) prepare() {
	switch p.file {
	case "":
		if err := os.Mkdir(filepath.Join(p.dir, "services.d"), 0o755); err != nil {
			p.t.Fatal(err)
		}
		writeFile(p.t, filepath.Join(p.dir, "vipd.toml"), "store.path = \"services.d\"\n")
	case "services.toml":
		writeFile(p.t, filepath.Join(p.dir, "vipd.toml"), "store.path = \"services.toml\"\n")
		p.writeAll()
	default:
		p.writeAll()
	}
}

func (p *place) Source() store.Source {
	s := tomlfile.New(tomlfile.Options{Main: filepath.Join(p.dir, "vipd.toml")})
	s.SetGrace(grace) // how long the source waits before it removes definitions that a file changed in place lacks
	return s
}

func (p *place) Write(name balancer.Name, fields map[string]any) {
	p.all[name] = fields
	if p.file != "" {
		p.writeAll()
		return
	}
	one := map[string]any{"services": map[string]any{string(name): fields}}
	p.save(filepath.Join(p.dir, "services.d", string(name)+".toml"), encode(p.t, one))
}

func (p *place) Delete(name balancer.Name) {
	delete(p.all, name)
	if p.file != "" {
		p.writeAll()
		return
	}
	if err := os.Remove(filepath.Join(p.dir, "services.d", string(name)+".toml")); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) writeAll() {
	services := map[string]any{}
	for name, fields := range p.all {
		services[string(name)] = fields
	}
	p.save(filepath.Join(p.dir, p.file), encode(p.t, map[string]any{"services": services}))
}

func encode(t testing.TB, tree map[string]any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := toml.NewEncoder(&b).Encode(tree); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	rewriteFile(t, path, []byte(text))
}

// rewriteFile truncates the file and writes the text to it, like cp or a redirection in the shell.
func rewriteFile(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// replaceFile writes the text to another file, and renames this file to path, as editors do.
func replaceFile(t testing.TB, path string, text []byte) {
	t.Helper()
	rewriteFile(t, path+".tmp", text)
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}
