package netlock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"vipd/cmd/internal/lockfile"
)

// name is the socket's abstract name.
const name = "@vipd"

// answerTime is the timeout for receiving the holder's answer, and for sending it. It is long
// enough for an overloaded host.
const answerTime = 5 * time.Second

// Lock is the lock on a network namespace. A nil Lock holds nothing.
type Lock struct {
	listener *net.UnixListener
	answer   []byte
}

// Acquire acquires the lock on this process's network namespace. [Lock.Run] reports self to other
// processes. If another process holds the lock, the error is a *HeldError, or a *ForeignError if an
// unprivileged user's process occupies the lock's name. If the holder is dying, Acquire waits until
// it is gone.
func Acquire(self Holder) (*Lock, error) {
	answer, err := json.Marshal(self)
	if err != nil {
		return nil, fmt.Errorf("describing this process: %w", err)
	}
	var l *net.UnixListener
	held := lockfile.Await(func() bool {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		return errors.Is(err, unix.EADDRINUSE)
	}, func() int { pid, _ := holder(); return pid })
	if held {
		if pid, uid := holder(); pid > 0 && uid != 0 && uid != os.Geteuid() {
			return nil, &ForeignError{pid, uid}
		}
		return nil, &HeldError{Ask()}
	}
	if err != nil {
		return nil, fmt.Errorf("locking the network namespace: %w", err)
	}
	return &Lock{l, answer}, nil
}

// Run reports the holder to each process that connects, until ctx is done. The lock is held until
// Close, even without Run.
func (l *Lock) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.listener.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		c, err := l.listener.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return nil
		}
		if err != nil { // most likely out of file descriptors
			select {
			case <-ctx.Done():
			case <-time.After(answerTime):
			}
			continue
		}
		_ = c.SetDeadline(time.Now().Add(answerTime))
		_, _ = c.Write(l.answer) // a client that has disconnected needs no answer
		_ = c.Close()
	}
}

// Close releases the lock.
func (l *Lock) Close() error {
	if l == nil {
		return nil
	}
	return l.listener.Close()
}

// holder returns the process ID and the user ID of the lock's holder, without waiting for its
// answer. pid is 0 if it is unknown.
func holder() (pid, uid int) {
	c, err := net.DialTimeout("unix", name, answerTime)
	if err != nil {
		return 0, 0
	}
	defer func() { _ = c.Close() }() // the connection was only opened to identify its peer
	return Peer(c.(*net.UnixConn))
}

// Ask returns all known details of the process that holds the lock on this network namespace. It
// waits for the holder's answer.
func Ask() (h Holder) {
	conn, err := net.DialTimeout("unix", name, answerTime)
	if err != nil {
		return h // the holder has just exited, or has too many clients
	}
	defer func() { _ = conn.Close() }()
	c := conn.(*net.UnixConn)
	var answer bytes.Buffer
	if c.SetReadDeadline(time.Now().Add(answerTime)) == nil {
		if _, err := answer.ReadFrom(c); err == nil && json.Unmarshal(answer.Bytes(), &h) != nil {
			h = Holder{}
		}
	}
	h.PID, _ = Peer(c)
	if h.PID > 0 {
		if comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(h.PID), "comm")); err == nil {
			h.Program = string(bytes.TrimSpace(comm))
		}
	}
	return h
}

// Peer returns the process ID and the user ID of the process at the other end of c. pid is 0 if
// this process can't see that process.
func Peer(c *net.UnixConn) (pid, uid int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid, uid = int(cred.Pid), int(cred.Uid)
		}
	})
	return pid, uid
}

// Needed reports whether this process needs the lock, because it has the privilege to change the
// network namespace (CAP_NET_ADMIN).
func Needed() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return true
	}
	return data[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0
}
