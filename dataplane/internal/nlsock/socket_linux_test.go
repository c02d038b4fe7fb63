package nlsock

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T) *Socket {
	t.Helper()
	s, err := Open(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// question returns a request about network devices. With NLM_F_DUMP in flags, it requests a list of
// all devices, otherwise a missing device.
func question(flags uint16, seq uint32) []byte {
	body := make([]byte, unix.SizeofIfInfomsg)
	body[4], body[5], body[6] = 0xff, 0xff, 0xff
	return message(nil, part{unix.RTM_GETLINK, flags | unix.NLM_F_REQUEST, seq, body})
}

// TestAsksTheKernel requests a list of all devices, and then a missing device. The socket must
// receive the complete list, and a refusal that does not repeat the request.
func TestAsksTheKernel(t *testing.T) {
	s := open(t)
	if err := s.Send(question(unix.NLM_F_DUMP, 7)); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for done := false; !done; {
		m, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		for m.Next() {
			switch {
			case m.Seq != 7 || m.Kind == unix.NLMSG_ERROR:
				t.Fatalf("message = %+v, want an answer to the request with sequence number 7", m)
			case m.Kind == unix.NLMSG_DONE:
				done = true
				if err := m.Refusal(); err != nil {
					t.Error(err)
				}
				continue
			}
			for a := In(m.Body[unix.SizeofIfInfomsg:]); a.Next(); {
				if a.Kind == unix.IFLA_IFNAME {
					names[unix.ByteSliceToString(a.Value)] = true
				}
			}
		}
		if m.Err != nil {
			t.Fatal(m.Err)
		}
	}
	if !names["lo"] {
		t.Errorf("devices = %v, want lo among them", names)
	}
	if err := s.Send(question(unix.NLM_F_ACK, 8)); err != nil {
		t.Fatal(err)
	}
	m, err := s.Receive()
	if err != nil || !m.Next() || m.Seq != 8 || m.Kind != unix.NLMSG_ERROR || m.Refusal() != syscall.ENODEV || len(m.Body) != 4+unix.SizeofNlMsghdr {
		t.Errorf("answer = %+v, %v; want %v", m, err, syscall.ENODEV)
	}
}

// TestWaitsNoLonger calls Receive while no message arrives. Receive must return at its deadline,
// when the socket is closed, or after Drain was called.
func TestWaitsNoLonger(t *testing.T) {
	for name, end := range map[string]func(*Socket){
		"deadline": func(s *Socket) { _ = s.SetReadDeadline(time.Unix(0, 1)) },
		"closed":   func(s *Socket) { _ = s.Close() },
	} {
		s := open(t)
		got := make(chan error)
		go func() {
			_, err := s.Receive()
			got <- err
		}()
		end(s)
		if err := <-got; err == nil || errors.Is(err, os.ErrDeadlineExceeded) != (name == "deadline") {
			t.Errorf("%s: Receive = %v, want an error, and os.ErrDeadlineExceeded only for the deadline", name, err)
		}
	}
	s := open(t)
	s.Drain()
	if _, err := s.Receive(); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("after Drain without a message: Receive = %v, want %v", err, unix.EAGAIN)
	}
}

// TestLateReaders reads answers after the time limit, like a process that did not run in time.
// Answers that arrived in time must be received.
func TestLateReaders(t *testing.T) {
	s := open(t)
	s.Patience = 0
	for seq := range uint32(3) {
		if err := s.Send(question(0, seq)); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Answer(); err != nil || !m.Next() || m.Seq != seq {
			t.Errorf("answer = %+v, %v; want the answer to the request with sequence number %d", m, err, seq)
		}
	}
	if _, err := s.Within(0); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("without a message: Within(0) = %v, want os.ErrDeadlineExceeded", err)
	}
}

// TestNamesTheSocket opens a socket with a netlink protocol that does not exist. The error must be
// EPROTONOSUPPORT.
func TestNamesTheSocket(t *testing.T) {
	const none = 31 // the largest possible protocol number, MAX_LINKS - 1
	if s, err := Open(none); !errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Errorf("Open = %v, %v; want EPROTONOSUPPORT", s, err)
	}
}

// TestAnswerIsNotAwaitedForEver sends a request to a kernel that does not answer. The request must
// time out. If the answer arrives later, it must be received.
func TestAnswerIsNotAwaitedForEver(t *testing.T) {
	s := open(t)
	s.Patience = time.Millisecond
	if _, err := s.Answer(); err == nil || err.Error() != "the kernel has not answered for 1ms" {
		t.Fatal(err)
	}
	s.Patience = Silence
	if err := s.Send(question(0, 8)); err != nil {
		t.Fatal(err)
	}
	if m, err := s.Answer(); err != nil || !m.Next() || m.Seq != 8 {
		t.Errorf("answer = %+v, %v; want the answer to the request with sequence number 8", m, err)
	}
}
