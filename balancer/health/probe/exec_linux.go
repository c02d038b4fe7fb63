package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
)

// maxOutput is how much is kept of what a program writes to either output: the end of it. All is read, so that the program
// never waits for a reader.
const maxOutput = 4 << 10

// exec runs the definition's program, without a shell, as its own user, in a process group of its own and with nothing
// open but its outputs. It passes if it ends with 0; what was seen is the last line of its complaints, or else of what it
// prints: programs say at the end what it comes to. When it ends, or its time is over, whatever is left of its group is
// killed.
func (a *attempt) exec(ctx context.Context) (string, error) {
	cmd := exec.Command(a.health.Command[0], a.health.Command[1:]...)
	who, err := identity(a.health.User)
	if err != nil {
		return "", err
	}
	output, complaints := &tail{}, &tail{}
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
		"VIPD_ADDRESS=" + a.at.Addr().String(), "VIPD_PORT=" + strconv.Itoa(int(a.at.Port())),
	}
	cmd.Stdout, cmd.Stderr = output, complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: who, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second // somebody outside the group may hold the output open
	a.notes.note("running %q", a.health.Command)
	if err := cmd.Start(); err != nil {
		return "", localf("starting the program: %w", err)
	}
	intime := await(ctx, cmd.Process.Pid)
	err = cmd.Wait()
	said := a.said(output, complaints)
	var exit *exec.ExitError
	switch {
	case !intime:
		return "", fmt.Errorf("not over within %s, killed%s", a.timeout(), after(said))
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		if said == "" {
			return "exited with 0", nil
		}
		return said, nil
	case errors.As(err, &exit) && exit.Exited():
		return "", fmt.Errorf("exited with %d%s", exit.ExitCode(), after(said))
	case errors.As(err, &exit):
		return "", fmt.Errorf("ended by signal: %s%s", exit.Sys().(syscall.WaitStatus).Signal(), after(said))
	}
	return "", localf("waiting for the program: %w", err)
}

// said returns what a program came to say, and notes all that is kept of it.
func (a *attempt) said(output, complaints *tail) string {
	printed, complained := output.bytes(), complaints.bytes()
	a.notes.data('<', printed)
	if len(complained) > 0 {
		a.notes.note("to stderr:")
		a.notes.data('<', complained)
	}
	if last := lastLine(string(complained)); last != "" {
		return last
	}
	return lastLine(string(printed))
}

// lastLine is the last line of text that is not empty, shortened.
func lastLine(text string) (last string) {
	for line := range strings.Lines(text) {
		if line = shown(line); line != "" {
			last = line
		}
	}
	return last
}

func after(said string) string {
	if said == "" {
		return ""
	}
	return ": " + said
}

// await waits until the process has ended or ctx is over, kills its whole group, and reports whether it ended by itself.
// The process is not reaped before its group is killed: till then its number cannot be anybody else's.
func await(ctx context.Context, pid int) bool {
	ended := make(chan struct{})
	var once sync.Once
	intime := false
	stop := context.AfterFunc(ctx, func() {
		once.Do(func() { _ = unix.Kill(-pid, unix.SIGKILL) })
		close(ended)
	})
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	if !stop() {
		<-ended // the time was over
	}
	once.Do(func() {
		intime = true
		_ = unix.Kill(-pid, unix.SIGKILL)
	})
	return intime
}

// identity returns whom a program runs as; nil: as vipd itself, which is not root then.
func identity(name string) (*syscall.Credential, error) {
	root := os.Geteuid() == 0
	if name == "" {
		if !root {
			return nil, nil
		}
		name = balancer.ExecUser
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, localf("looking up the user %s: %w", name, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, localf("looking up the user %s: %w", name, err)
	}
	if !root {
		if int(uid) == os.Geteuid() {
			return nil, nil
		}
		return nil, localf("vipd needs root to run programs as %s", name)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, localf("looking up the groups of %s: %w", name, err)
	}
	c := &syscall.Credential{Uid: uint32(uid)}
	for _, id := range append([]string{u.Gid}, ids...) {
		gid, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, localf("looking up the groups of %s: %w", name, err)
		}
		c.Groups = append(c.Groups, uint32(gid))
	}
	c.Gid = c.Groups[0]
	return c, nil
}

// tail keeps the last of what is written, and takes all of it.
type tail struct {
	mu  sync.Mutex // a reader may come while somebody still writes
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p[max(0, len(p)-maxOutput):]...)
	if over := len(t.buf) - maxOutput; over > 0 {
		t.buf = t.buf[:copy(t.buf, t.buf[over:])]
	}
	return len(p), nil
}

func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Clone(t.buf)
}
