//go:build unix

package readme

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vipd/examples/process"
	"vipd/test/lab"
)

// patience is each block's time limit. It is long because the first block builds everything.
const patience = 10 * time.Minute

// TestMain uses a network namespace if possible, so that the quickstart's ports are free.
func TestMain(m *testing.M) { lab.Main(m) }

// block is a fenced block in README.md.
type block struct {
	line int
	// language and needs are the words of the opening line.
	language, needs string
	text            string
}

func (b block) name() string { return strings.TrimSpace(fmt.Sprintf("line %d %s", b.line, b.needs)) }

// blocks reads the fenced blocks of a Markdown file.
func blocks(t *testing.T, file string) []block {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var found []block
	var open *block
	for i, line := range strings.Split(string(text), "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			language, needs, _ := strings.Cut(info, " ")
			open = &block{line: i + 1, language: language, needs: needs}
		case fence:
			found = append(found, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	if open != nil {
		t.Fatalf("%s: the block that starts at line %d is not closed", file, open.line)
	}
	return found
}

// reader simulates a reader who follows README.md in a fresh copy of the tree.
type reader struct {
	top, destination string
	env              []string
	// endQuickstart sends Ctrl-C to the quickstart, and waits until it has exited. A second call
	// does nothing.
	endQuickstart func()
}

// TestREADME runs README.md's blocks in order. Each block must work as described.
func TestREADME(t *testing.T) {
	r := newReader(t)
	all := blocks(t, filepath.Join(r.top, "README.md"))
	for _, b := range all {
		switch {
		case b.language == "toml":
			t.Run(b.name(), func(t *testing.T) { r.checkTOML(t, b) })
		case b.language != "sh":
		case b.needs == "":
			t.Run(b.name(), func(t *testing.T) { r.run(t, b.text) })
		case b.needs == "foreground":
			r.runBeside(t, b)
		case b.needs == "root":
			t.Run(b.name(), func(t *testing.T) { r.install(t, b) })
		case b.needs == "service":
			t.Run(b.name(), func(t *testing.T) { r.service(t, b, all) })
		case b.needs == "systemd": // test/systemd runs it
		default:
			t.Errorf("README.md:%d: %q is unknown", b.line, b.needs)
		}
	}
}

// newReader copies the tree's files, like a clone.
func newReader(t *testing.T) *reader {
	t.Helper()
	lab.Need(t, "make", "curl", "nc")
	gomod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Dir(strings.TrimSpace(string(gomod)))
	r := &reader{top: t.TempDir(), destination: t.TempDir()}
	copied, err := exec.Command("bash", "-euo", "pipefail", "-c",
		`cd "$1"; tar --exclude=./.git --exclude=./bin --exclude=./build -cf - . | tar -C "$2" --no-same-owner -xf -`, "copy", source, r.top).CombinedOutput()
	if err != nil {
		t.Fatalf("copying the tree: %v\n%s", err, copied)
	}
	r.env = append(os.Environ(),
		"DESTDIR="+r.destination, "PREFIX=/usr/local", // overrides the caller's PREFIX
		"PATH="+filepath.Join(r.destination, "usr/local/bin")+":"+os.Getenv("PATH"),
		"VIPCTL_CONFIG="+r.config())
	return r
}

// config returns the path of this reader's /etc/vipd/vipd.toml.
func (r *reader) config() string { return filepath.Join(r.destination, "etc/vipd/vipd.toml") }

// command prepares a script from README.md. The script stops at the first command that fails, and
// sudo is omitted.
func (r *reader) command(script string) *exec.Cmd {
	script = strings.ReplaceAll(script, "/etc/vipd/vipd.toml", r.config())
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", "sudo() { \"$@\"; }\n"+script)
	cmd.Dir, cmd.Env = r.top, r.env
	return cmd
}

func (r *reader) run(t *testing.T, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := process.Start(&out, r.command(script))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(patience):
		p.Kill()
		t.Fatalf("the script does not exit:\n%s\noutput:\n%s", script, p.Output())
	}
	if err := p.Err(); err != nil {
		t.Fatalf("running the block: %[2]v\n%[1]s", script, err)
	}
	return p.Output()
}

// runBeside starts a long-running script, and waits until it prints the next step. When the test
// ends, it stops the script with Ctrl-C.
func (r *reader) runBeside(t *testing.T, b block) {
	t.Helper()
	p, err := process.Start(nil, r.command("exec "+strings.TrimSpace(b.text)))
	if err != nil {
		t.Fatal(err)
	}
	r.endQuickstart = sync.OnceFunc(func() {
		interrupt(p)
		select {
		case <-p.Done():
		case <-time.After(time.Minute):
			t.Errorf("README.md:%d: Ctrl-C does not stop the script; output:\n%s", b.line, p.Output())
			p.Kill()
		}
	})
	t.Cleanup(r.endQuickstart)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.AwaitOutput(ctx, "Ctrl-C here ends everything"); err != nil {
		t.Fatalf("README.md:%d: %v", b.line, err)
	}
}

// install runs an installation into DESTDIR twice. The second install must not change a modified
// configuration.
func (r *reader) install(t *testing.T, b block) {
	r.run(t, b.text)
	for _, file := range []string{
		"usr/local/bin/vipd", "usr/local/bin/vipctl", "usr/local/lib/systemd/system/vipd.service", "usr/local/lib/systemd/system/vipd-owner.service", "etc/vipd/vipd.toml",
		"usr/local/share/bash-completion/completions/vipctl", "usr/local/share/zsh/site-functions/_vipctl",
		"usr/local/share/fish/vendor_completions.d/vipctl.fish",
		"usr/local/share/man/man1/vipctl.1", "usr/local/share/man/man1/vipctl-drain.1", "usr/local/share/man/man5/vipd.toml.5", "usr/local/share/man/man8/vipd.8",
		"usr/local/lib/modprobe.d/vipd.conf", "usr/local/lib/modules-load.d/vipd.conf", "usr/local/lib/sysctl.d/vipd.conf",
	} {
		if info, err := os.Stat(filepath.Join(r.destination, file)); err != nil || info.Size() == 0 {
			t.Errorf("installed file = %v, want %s with content", err, file)
		}
	}
	mine := "# mine\n" + read(t, r.config())
	if err := os.WriteFile(r.config(), []byte(mine), 0o644); err != nil {
		t.Fatal(err)
	}
	r.run(t, b.text)
	if got := read(t, r.config()); got != mine {
		t.Errorf("a second make install changed %s", r.config())
	}
	r.uninstall(t)
}

// uninstall runs make uninstall in another DESTDIR. The command must remove everything except the
// configuration.
func (r *reader) uninstall(t *testing.T) {
	other := t.TempDir()
	r.run(t, "make install DESTDIR="+other)
	r.run(t, "make uninstall DESTDIR="+other)
	err := filepath.WalkDir(other, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && path != filepath.Join(other, "etc/vipd/vipd.toml") {
			t.Errorf("%s still exists after make uninstall", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// checkTOML runs vipctl check on a configuration in README.md.
func (r *reader) checkTOML(t *testing.T, b block) {
	file := filepath.Join(t.TempDir(), "vipd.toml")
	if err := os.WriteFile(file, []byte(b.text), 0o644); err != nil {
		t.Fatal(err)
	}
	r.run(t, "bin/vipctl check "+file)
}

// service follows "The first service on a real host": vipd runs with the installed configuration
// and README.md's service, and the servers must answer.
func (r *reader) service(t *testing.T, b block, all []block) {
	lab.Require(t)
	i := slices.IndexFunc(all, func(b block) bool { return b.language == "toml" })
	if i < 0 {
		t.Fatal("README.md has no TOML")
	}
	state := t.TempDir()
	text := strings.Replace(read(t, r.config()), `#state_dir = "/var/lib/vipd"`, fmt.Sprintf("state_dir = %q", state), 1)
	if !strings.Contains(text, state) {
		t.Fatal("the default configuration has no state_dir to change")
	}
	// Readers run the quickstart without root. Here it runs as root, so no other vipd can use the
	// network namespace until it exits.
	r.endQuickstart()
	if err := os.WriteFile(r.config(), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, address := range []string{"192.168.1.11", "192.168.1.12"} {
		r.run(t, "ip address add "+address+"/32 dev lo")
		p := r.background(t, fmt.Sprintf("exec bin/echo --name s%d --http %s:8080", i+1, address))
		r.await(t, p, "serving")
	}
	daemon := r.background(t, "exec vipd --config /etc/vipd/vipd.toml")
	r.await(t, daemon, "ready: the first complete state")

	if err := os.WriteFile(r.config(), []byte(text+all[i].text), 0o644); err != nil {
		t.Fatal(err)
	}
	out := r.run(t, strings.Replace(b.text, "curl ", "curl -sS -m 60 ", 1))
	if !strings.Contains(out, "\ns1 ") && !strings.Contains(out, "\ns2 ") {
		t.Errorf("curl printed no server's answer:\n%s", out)
	}
}

func (r *reader) background(t *testing.T, script string) *process.Process {
	t.Helper()
	p, err := process.Start(nil, r.command(script))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(time.Minute); err != nil {
			t.Errorf("ending the script: error = %v, want none", err)
		}
		if t.Failed() {
			t.Logf("%s\n%s", script, p.Output())
		}
	})
	return p
}

func (r *reader) await(t *testing.T, p *process.Process, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.AwaitOutput(ctx, text); err != nil {
		t.Fatal(err)
	}
}

// interrupt sends Ctrl-C's signal to the whole process group, like a terminal.
func interrupt(p *process.Process) { _ = syscall.Kill(-p.Pid(), syscall.SIGINT) }
