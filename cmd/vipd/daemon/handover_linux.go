package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	systemd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"vipd/cmd/internal/api"
	"vipd/dataplane/handover"
)

// storeName is the name of the handover queue in systemd's descriptor store.
const storeName = "vipd-handover"

// fromStore returns the queue that the previous process stored with systemd, or nil.
func fromStore() (queue *handover.Queue, err error) {
	_ = restarting() // remove the mark in any case, because a killed process leaves it
	for _, f := range activation.Files(true) {
		if f.Name() != storeName || queue != nil {
			_ = f.Close()
			continue
		}
		if queue, err = handover.FromFile(f); err != nil {
			return nil, err
		}
		_, _ = systemd.SdNotify(false, "FDSTOREREMOVE=1\nFDNAME="+storeName) // this process has the queue now
	}
	return queue, nil
}

// requestHandover asks the running vipd to hand over and exit, and returns its queue. It returns
// nil if no vipd is running.
func requestHandover(socket string) (*handover.Queue, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("asking the running vipd to hand over: %w", err)
	}
	return handover.Over(c), nil
}

// listenHandover opens the socket to which requestHandover connects. Only this user may connect.
func listenHandover(socket string) (*net.UnixListener, error) {
	_ = os.Remove(socket) // left by a killed vipd; this process holds the lock
	l, err := api.Listen("unixpacket", socket)
	if err != nil {
		return nil, fmt.Errorf("opening the socket for the handover: %w", err)
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// awaitSuccessor waits for another vipd that wants to take over, and then stops this vipd.
func (d *Daemon) awaitSuccessor(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = d.replacing.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c, err := d.replacing.AcceptUnix()
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("waiting for another vipd to take over: %w", err)
	}
	d.successorQueue = handover.Over(c)
	return errReplaced
}

// storeQueue stores a queue with systemd if systemd is restarting this unit. Otherwise it returns
// nil.
func (d *Daemon) storeQueue(ctx context.Context) (*handover.Queue, error) {
	if os.Getenv("NOTIFY_SOCKET") == "" || !restarting() {
		return nil, nil
	}
	in, out, err := handover.Pair()
	if err != nil {
		return nil, err
	}
	file, err := in.File()
	if err == nil {
		// Without FDPOLL=0, systemd would drop the descriptor when this process exits, because it
		// has the other end.
		err = notifyWith("FDSTORE=1\nFDPOLL=0\nFDNAME="+storeName, file)
		_ = file.Close()
	}
	if err == nil {
		err = barrier(ctx)
	}
	if _ = in.Close(); err == nil && out.Abandoned() { // if systemd stores descriptors, it has a copy
		err = errors.New("systemd did not keep the descriptor: set FileDescriptorStoreMax=1 in the unit")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("passing connections to systemd: %w", err), out.Close())
	}
	return out, nil
}

// barrierTime limits how long systemd may take to read a message.
const barrierTime = 5 * time.Second

// restartMark is a file in the unit's RuntimeDirectory. The unit's ExecStop creates it when systemd
// restarts vipd, because vipd's sandbox prevents a request to systemd.
const restartMark = "restarting"

// restarting reports whether systemd is restarting this unit, and removes the mark.
func restarting() bool {
	folder := os.Getenv("RUNTIME_DIRECTORY")
	return folder != "" && os.Remove(filepath.Join(folder, restartMark)) == nil
}

// notifyWith sends a message with a file descriptor to systemd.
func notifyWith(text string, file *os.File) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer func() { _ = unix.Close(fd) }()
		to := &unix.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")}
		err = unix.Sendmsg(fd, []byte(text), unix.UnixRights(int(file.Fd())), to, unix.MSG_NOSIGNAL)
	}
	if err != nil {
		return fmt.Errorf("notifying systemd: %w", err)
	}
	return nil
}

// barrier waits until systemd has read all messages. It sends a file descriptor with BARRIER=1, and
// systemd closes this descriptor after it has read all earlier messages.
func barrier(ctx context.Context) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("waiting for systemd: %w", err)
	}
	defer func() { _ = r.Close() }()
	err = notifyWith("BARRIER=1", w)
	_ = w.Close()
	if err != nil {
		return err
	}
	if err := r.SetReadDeadline(time.Now().Add(barrierTime)); err != nil {
		return fmt.Errorf("waiting for systemd: %w", err)
	}
	if _, err := r.Read(make([]byte, 1)); os.IsTimeout(err) {
		return errors.New("systemd does not read its notifications")
	}
	return ctx.Err()
}
