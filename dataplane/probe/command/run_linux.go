package command

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
)

// defaultOutput is the default of Command.Output. Run reads the whole output, so the program never
// waits for a reader.
const defaultOutput = 4 << 10

// Run runs the program until it exits or ctx is canceled. The error is the reason why the program
// could not be started.
func (c Command) Run(ctx context.Context) (Result, error) {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	if cmd.Err == nil { // if Err is set, Start returns it
		if err := Trusted(cmd.Path); err != nil {
			return Result{}, err
		}
	}
	who, err := identity(c.User)
	if err != nil {
		return Result{}, err
	}
	size := cmp.Or(c.Output, defaultOutput)
	output, complaints := &tail{size: size}, &tail{size: size}
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}, c.Env...)
	cmd.Stdout, cmd.Stderr = output, complaints
	if c.Input != nil {
		cmd.Stdin = bytes.NewReader(c.Input)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: who, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second // a process outside the group may hold the output open
	if err := cmd.Start(); err != nil {
		if path, ok := errors.AsType[*fs.PathError](err); ok {
			err = path.Err
		}
		return Result{}, fmt.Errorf("starting %s: %w", c.Args[0], err)
	}
	inTime := await(ctx, cmd.Process.Pid)
	err = cmd.Wait()
	reap(cmd.Process.Pid)
	r := Result{Stdout: output.bytes(), Stderr: complaints.bytes()}
	var exit *exec.ExitError
	switch {
	case !inTime:
		r.Err = ErrLate
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
	case errors.As(err, &exit) && exit.Exited():
		r.Err = fmt.Errorf("exited with %d", exit.ExitCode())
	case errors.As(err, &exit):
		r.Err = fmt.Errorf("ended by signal: %s", exit.Sys().(syscall.WaitStatus).Signal())
	default:
		return Result{}, fmt.Errorf("waiting for the program: %w", err)
	}
	return r, nil
}

// await waits until the process exits or ctx is canceled, and kills the whole process group. It
// reports whether the process exited by itself. It kills the group before it reaps the process,
// because once the process is reaped, its PID may be reused.
func await(ctx context.Context, pid int) bool {
	ended := make(chan struct{})
	var once sync.Once
	inTime := false
	stop := context.AfterFunc(ctx, func() {
		once.Do(func() { _ = unix.Kill(-pid, unix.SIGKILL) })
		close(ended)
	})
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	if !stop() {
		<-ended // ctx was canceled first, so wait for the killed process
	}
	once.Do(func() {
		inTime = true
		_ = unix.Kill(-pid, unix.SIGKILL)
	})
	return inTime
}

// reap waits for the remaining processes of a killed process group. If vipd is a container's first
// process, orphans become its children, and no other process waits for them.
func reap(pid int) {
	var err error
	for err == nil || err == unix.EINTR {
		_, err = unix.Wait4(-pid, nil, 0, nil) // ECHILD means that no child is left
	}
}

// identity returns the credentials of the user that runs a program. It returns nil if this is
// vipd's own user and vipd does not run as root.
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
		return nil, fmt.Errorf("looking up the user %s: %w", name, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("looking up the user %s: %w", name, err)
	}
	if !root {
		if int(uid) == os.Geteuid() {
			return nil, nil
		}
		return nil, fmt.Errorf("vipd needs root to run programs as %s", name)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("looking up the groups of %s: %w", name, err)
	}
	c := &syscall.Credential{Uid: uint32(uid)}
	for _, id := range append([]string{u.Gid}, ids...) {
		gid, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("looking up the groups of %s: %w", name, err)
		}
		c.Groups = append(c.Groups, uint32(gid))
	}
	c.Gid = c.Groups[0]
	return c, nil
}

// tail is a writer that retains the last size bytes.
type tail struct {
	size int
	mu   sync.Mutex // the program may still write when its output is read
	buf  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p[max(0, len(p)-t.size):]...)
	if over := len(t.buf) - t.size; over > 0 {
		t.buf = t.buf[:copy(t.buf, t.buf[over:])]
	}
	return len(p), nil
}

func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Clone(t.buf)
}
