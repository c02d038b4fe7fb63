package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/examples/process"
	"vipd/test/wait"
)

// Tree is a copy of the files that users touch, with the programs in bin, as after make build.
type Tree struct {
	// Top is the tree's directory. Every user may read it, and the user nobody owns it (see the
	// package's comment).
	Top string
}

// New builds the programs into a fresh tree, which is removed when the test ends.
func New(t *testing.T) *Tree {
	t.Helper()
	top, err := os.MkdirTemp("", "vipd-tree-") // other users can't enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	tree := &Tree{top}
	if folder := os.Getenv(BinVar); folder == "" {
		build(t, filepath.Join(top, "bin"), all()...)
	} else if err := os.CopyFS(filepath.Join(top, "bin"), os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	tree.copyExamples(t)
	err = filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = unprivilegedOwner(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	return tree
}

// BinVar is an environment variable with a directory that contains all programs, which a runner of
// many tests builds once.
const BinVar = "VIPD_BIN"

func all() []string {
	return []string{"vipd/cmd/vipd", "vipd/cmd/vipctl", "vipd/examples/echo", "vipd/examples/demo"}
}

// BuildAll builds all programs into a directory below the top of the tree, and sets BinVar.
func BuildAll(ctx context.Context, folder string) error {
	top, err := source()
	if err != nil {
		return err
	}
	folder = filepath.Join(top, folder)
	if err := compile(ctx, top, folder, all()); err != nil {
		return err
	}
	return os.Setenv(BinVar, folder)
}

// Bin returns a directory with vipd and vipctl, built for this test unless BinVar is set.
func Bin(t testing.TB) string {
	t.Helper()
	if folder := os.Getenv(BinVar); folder != "" {
		return folder
	}
	return Build(t, "./cmd/vipd", "./cmd/vipctl")
}

// Build builds packages of this tree, such as "./cmd/vipd", and returns a directory with the
// programs.
func Build(t testing.TB, packages ...string) string {
	t.Helper()
	folder := t.TempDir()
	build(t, folder, packages...)
	return folder
}

func build(t testing.TB, into string, packages ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs the built programs, which -short does without")
	}
	top, err := source()
	if err == nil {
		err = compile(t.Context(), top, into, packages)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func compile(ctx context.Context, top, into string, packages []string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-buildvcs=false", "-o", into + "/"}, packages...)...)
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return nil
}

// source returns the top of the tree under test.
func source() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("finding the tree: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

func (tree *Tree) copyExamples(t *testing.T) {
	t.Helper()
	source, err := source()
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"examples", "examples/etcd", "examples/pair"} {
		files, err := os.ReadDir(filepath.Join(source, folder))
		if err != nil {
			t.Fatalf("finding the examples: %v", err)
		}
		if err := os.Mkdir(filepath.Join(tree.Top, folder), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if file.IsDir() {
				continue
			}
			text, err := os.ReadFile(filepath.Join(source, folder, file.Name()))
			info, statErr := file.Info()
			if err = errors.Join(err, statErr); err == nil {
				err = os.WriteFile(filepath.Join(tree.Top, folder, file.Name()), text, info.Mode())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// command prepares a program in the tree, which runs in the top directory without privilege.
func (tree *Tree) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(tree.Top, "bin", name), args...)
	cmd.Dir = tree.Top
	dropPrivilege(cmd)
	return cmd
}

// Start starts a program in the tree. The program is stopped when the test ends, and must exit
// gracefully.
func (tree *Tree) Start(t *testing.T, name string, args ...string) *process.Process {
	t.Helper()
	return tree.start(t, tree.command(name, args...))
}

// Run starts a command line, which must start with exec, in the top directory without privilege. It
// is stopped like Start's program.
func (tree *Tree) Run(t *testing.T, line string) *process.Process {
	t.Helper()
	cmd := exec.Command("bash", "-c", line)
	cmd.Dir = tree.Top
	dropPrivilege(cmd)
	return tree.start(t, cmd)
}

func (tree *Tree) start(t *testing.T, cmd *exec.Cmd) *process.Process {
	t.Helper()
	p, err := process.Start(nil, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-p.Done():
		default:
			if err := p.Stop(wait.Patience); err != nil {
				t.Errorf("ending: %v", err)
			}
		}
		if t.Failed() {
			t.Logf("%s printed:\n%s", cmd, p.Output())
		}
	})
	return p
}

// Echo starts a server and waits until it serves.
func (tree *Tree) Echo(t *testing.T, name string, args ...string) *process.Process {
	t.Helper()
	p := tree.Start(t, "echo", append([]string{"--name", name}, args...)...)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	defer cancel()
	if err := p.AwaitOutput(ctx, "serving"); err != nil {
		t.Fatal(err)
	}
	return p
}

// Daemon starts vipd with examples/NAME.toml and waits until it is ready.
func (tree *Tree) Daemon(t *testing.T, name string) *process.Process {
	t.Helper()
	p := tree.Start(t, "vipd", "--config", filepath.Join("examples", name+".toml"))
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	defer cancel()
	err := p.Await(ctx, func() error {
		out, err := tree.command("vipctl", "--socket", Socket(name), "status", "-o", "json").CombinedOutput()
		if err != nil {
			return fmt.Errorf("vipctl status: %w: %s", err, out)
		}
		var status struct{ Ready bool }
		if err := json.Unmarshal(out, &status); err != nil || !status.Ready {
			return fmt.Errorf("it is not ready (%v): %s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Socket returns vipd's socket for examples/NAME.toml, relative to the top of a tree.
func Socket(name string) string { return filepath.Join("build", name, "run", "vipd.sock") }

// Shell runs a command line in the top directory, with a line on its standard input and a time
// limit, and returns its output. A command that reaches the limit (nc in conversation) is not an
// error, because only its output counts.
func (tree *Tree) Shell(t *testing.T, line string, limit time.Duration) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir = tree.Top
	cmd.Stdin = strings.NewReader("hello\n")
	cmd.WaitDelay = time.Second
	dropPrivilege(cmd)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil && t.Context().Err() == nil {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", line, err, out)
	}
	return string(out), err
}
