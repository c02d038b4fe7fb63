package ipvsnl

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
	"vipd/test/wait"
)

// answer returns a fake kernel's answer to a message. If it returns nil, the kernel does not
// answer.
type answer func(m *nlsock.Messages) []byte

// refusal returns an answer with the error number errno. If errno is 0, it is an acknowledgement.
func refusal(errno syscall.Errno) answer {
	return func(m *nlsock.Messages) []byte {
		b := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr+4)
		b = binary.NativeEndian.AppendUint16(b, unix.NLMSG_ERROR)
		b = binary.NativeEndian.AppendUint16(b, 0)
		b = binary.NativeEndian.AppendUint32(b, m.Seq)
		b = append(b, 0, 0, 0, 0)
		return binary.NativeEndian.AppendUint32(b, uint32(-int32(errno)))
	}
}

// clientOfFakes returns a Client for fake kernels. Its first socket connects to the first kernel,
// its second socket to the second kernel, and so on. The sockets do not use the real number of the
// IPVS netlink family.
func clientOfFakes(t *testing.T, limit time.Duration, kernels ...answer) *Client {
	t.Helper()
	k := newKernel(func(context.Context) (*socket, error) {
		if len(kernels) == 0 {
			return nil, errors.New("no more sockets")
		}
		a := kernels[0]
		kernels = kernels[1:]
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		peer, err := over(fds[1])
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = peer.Close() })
		go serve(peer, a)
		return over(fds[0])
	}, limit)
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

func over(fd int) (*socket, error) {
	s, err := nlsock.Over(fd)
	return &socket{Socket: s}, err
}

func serve(peer *socket, a answer) {
	for {
		m, err := peer.Receive()
		if err != nil || m.Empty() {
			return
		}
		peer.B = peer.B[:0]
		for m.Next() {
			if a != nil {
				peer.B = append(peer.B, a(&m)...)
			}
		}
		if len(peer.B) > 0 && peer.Send(peer.B) != nil {
			return
		}
	}
}

// TestNoAnswer sends requests to a kernel that does not answer. The call must return an error that
// names the request, and the next call must reach another kernel.
func TestNoAnswer(t *testing.T) {
	k := clientOfFakes(t, 50*time.Millisecond, nil, refusal(syscall.ESRCH))
	_, err := k.Service(t.Context(), key("10.96.0.1:80"))
	if want := "reading virtual server 10.96.0.1:80/tcp: the kernel did not answer within 50ms"; !errors.Is(err, ErrNoAnswer) || err.Error() != want {
		t.Fatalf("error = %v, want %s", err, want)
	}
	k.limit = wait.Patience
	if _, err := k.Service(t.Context(), key("10.96.0.1:80")); !errors.Is(err, ErrNoService) {
		t.Fatalf("error = %v, want %v", err, ErrNoService)
	}
}

// TestNoAnswerToABatch sends several batches of changes to a kernel that does not answer. The
// client must stop after the first batch. Each change's error must show whether the client tried to
// make the change.
func TestNoAnswerToABatch(t *testing.T) {
	k := clientOfFakes(t, 50*time.Millisecond, nil, refusal(0))
	ops := fleet(1, 2*batchSize)
	errs := k.Do(t.Context(), ops)
	if len(errs) != len(ops) {
		t.Fatalf("errors = %d, want 1 for each of %d changes", len(errs), len(ops))
	}
	for i, err := range errs {
		if tried := !strings.Contains(err.Error(), "not tried"); !errors.Is(err, ErrNoAnswer) || !strings.HasPrefix(err.Error(), ops[i].String()) || tried != (i < batchSize) {
			t.Fatalf("error of change %d = %v, want ErrNoAnswer, the change, and whether the client tried it", i, err)
		}
	}
	k.limit = wait.Patience
	if errs := k.Do(t.Context(), ops); errs != nil {
		t.Fatal(errs[0])
	}
}

// TestContextEnds cancels a call's context. The call must stop waiting for an answer or for other
// calls.
func TestContextEnds(t *testing.T) {
	k := clientOfFakes(t, time.Hour, nil, nil, refusal(syscall.ESRCH))
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := k.Services(ctx)
		first <- err
	}()
	wait.For(t, 10*time.Second, "the other to have the socket", func() bool { return len(k.turn) == 0 })
	short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := k.Services(short); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNoAnswer) {
		t.Fatalf("error = %v, want only %v because nothing was sent", err, context.DeadlineExceeded)
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) || !errors.Is(err, ErrNoAnswer) {
		t.Fatalf("error = %v, want %v", err, context.Canceled)
	}
	if errs := k.Do(ctx, fleet(1, 0)); len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
		t.Fatalf("errors = %v, want %v", errs, context.Canceled)
	}
}

// TestClosed calls methods after Close. Each must return an error.
func TestClosed(t *testing.T) {
	k := clientOfFakes(t, time.Hour)
	if err := errors.Join(k.Close(), k.Close()); err != nil {
		t.Fatal(err)
	}
	refuses(t, k)
}

// TestUnloaded makes the kernel answer as if IPVS had been unloaded. The error must differ from the
// error for a missing destination.
func TestUnloaded(t *testing.T) {
	k := clientOfFakes(t, time.Hour, refusal(syscall.ENOENT), refusal(syscall.ENOENT), refusal(0))
	op := Op{Verb: DeleteDestination, Service: Service{Key: key("10.96.0.1:80")}, Destination: Destination{Addr: at("10.2.0.1:80")}}
	if err := errors.Join(k.Do(t.Context(), []Op{op})...); err == nil || errors.Is(err, ErrNoDestination) {
		t.Fatalf("deletion: error = %v, want an error other than ErrNoDestination", err)
	}
	if _, err := k.Services(t.Context()); err == nil || errors.Is(err, syscall.ENOENT) && !errors.Is(err, ErrUnsupported) {
		t.Fatalf("Services = %v, want ErrUnsupported, or an error other than ENOENT", err)
	}
	do(t, k, op) // uses the third socket
}

// TestMalformed makes the kernel send malformed answers. Each must cause an error.
func TestMalformed(t *testing.T) {
	garbage := func(m *nlsock.Messages) []byte {
		b := refusal(0)(m)
		b[0] = 200 // more than the message's length
		return b
	}
	k := clientOfFakes(t, time.Hour, garbage, garbage, refusal(0))
	if _, err := k.Services(t.Context()); !errors.Is(err, nlsock.ErrMalformed) {
		t.Fatalf("error = %v, want %v", err, nlsock.ErrMalformed)
	}
	if errs := k.Do(t.Context(), fleet(1, 0)); len(errs) != 1 || !errors.Is(errs[0], nlsock.ErrMalformed) {
		t.Fatalf("errors = %v, want %v", errs, nlsock.ErrMalformed)
	}
	do(t, k, fleet(1, 0)...)
}

// refuses checks that every call to c fails after Close.
func refuses(t *testing.T, c Conn) {
	t.Helper()
	ctx := t.Context()
	_, service := c.Service(ctx, key("10.96.0.1:80"))
	_, services := c.Services(ctx)
	_, destinations := c.Destinations(ctx, key("10.96.0.1:80"))
	_, table := c.Table(ctx)
	_, count := c.Services4(ctx)
	_, timeouts := c.Timeouts(ctx)
	_, scheduler := c.HasScheduler(ctx, "wrr")
	var connections error
	for _, connections = range c.Connections(ctx) {
	}
	for i, err := range []error{
		errors.Join(c.Do(ctx, fleet(1, 0))...), service, services, destinations, table, count, timeouts,
		c.SetTimeouts(ctx, Timeouts{TCP: time.Second}), scheduler, connections,
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("call %d: error = %v, want %v", i, err, os.ErrClosed)
		}
	}
}
