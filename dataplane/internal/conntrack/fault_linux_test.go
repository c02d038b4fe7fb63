package conntrack

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nlsock"
	"vipd/test/wait"
)

// answer writes a fake kernel's answer to the message with the sequence number seq.
type answer func(w *writer, seq uint32)

// connectToFake connects to a fake kernel that gives these answers, one for each message. It
// repeats the last answer for all later messages.
func connectToFake(t *testing.T, answers ...answer) *Conn {
	t.Helper()
	var w sync.WaitGroup
	open := func() *nlsock.Socket {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := nlsock.Over(fds[0])
		if err != nil {
			t.Fatal(err)
		}
		kernel, err := nlsock.Over(fds[1])
		if err != nil {
			t.Fatal(err)
		}
		w.Go(func() { serve(t, kernel, answers) })
		return ours
	}
	c := &Conn{lists: open(), deletes: open()}
	c.lists.Patience = wait.Patience
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		w.Wait()
	})
	return c
}

func serve(t *testing.T, kernel *nlsock.Socket, answers []answer) {
	for {
		m, err := kernel.Receive()
		if err == nil && m.Empty() || errors.Is(err, unix.ECONNRESET) { // the other end has closed the connection
			if err := kernel.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		for m.Next() {
			var w writer
			if answers[0](&w, m.Seq); len(w.B) > 0 {
				// The client closes its socket once it has enough answers, and may leave a message
				// unread.
				if err := kernel.Send(w.B); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
					t.Error(err)
				}
			}
			if len(answers) > 1 {
				answers = answers[1:]
			}
		}
	}
}

func (w *writer) plain(kind, flags uint16, seq uint32, body ...byte) {
	w.Begin(kind, flags, seq, body...)
	w.End()
}

// fail writes an answer with an error. If errno is 0, the answer is an acknowledgement.
func (w *writer) fail(kind uint16, seq uint32, errno unix.Errno) {
	w.plain(kind, 0, seq, append(binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno))), make([]byte, unix.SizeofNlMsghdr)...)...)
}

func lists(flags uint16, flows ...Flow) answer {
	return func(w *writer, seq uint32) {
		for i := range flows {
			w.plain(messageNew, unix.NLM_F_MULTI|flags, seq, encode(&flows[i], whole)...)
		}
		w.fail(unix.NLMSG_DONE, seq, 0)
	}
}

func fails(errno unix.Errno) answer {
	return func(w *writer, seq uint32) { w.fail(unix.NLMSG_ERROR, seq, errno) }
}

// TestListsOfKernelsInTrouble uses fake kernels that refuse or interrupt lists. Each must return
// the error or repeat the list, and must not wait for a timeout.
func TestListsOfKernelsInTrouble(t *testing.T) {
	one, two := flow(balancer.UDP, "10.1.0.2:1000", "10.96.0.1:53", "10.2.0.1:53"), flow(balancer.TCP, "10.1.0.2:1000", "10.96.0.2:53", "10.2.0.1:53")
	garbage := func(w *writer, seq uint32) {
		w.plain(messageNew, 0, seq, 2, 0, 0, 0, 1, 0, 1, 0)
		w.fail(unix.NLMSG_DONE, seq, 0)
	}
	for name, c := range map[string]struct {
		kernel []answer
		filter Filter
		visits int
		err    error
	}{
		"disturbed once":             {[]answer{lists(unix.NLM_F_DUMP_INTR, one), lists(0, one, two)}, Filter{}, 3, nil},
		"disturbed always":           {[]answer{lists(unix.NLM_F_DUMP_INTR, one)}, Filter{}, attempts, errDisturbed},
		"ignores the filter":         {[]answer{lists(0, one, two)}, Filter{Dst: two.Orig.Dst.Addr()}, 1, nil},
		"refuses the filter":         {[]answer{fails(unix.EINVAL), lists(0, one, two)}, Filter{Dst: two.Orig.Dst.Addr()}, 1, nil},
		"refuses without filter":     {[]answer{fails(unix.EINVAL)}, Filter{}, 0, unix.EINVAL},
		"no privilege":               {[]answer{fails(unix.EPERM)}, Filter{Proto: balancer.UDP, Family: inet.IPv4}, 0, unix.EPERM},
		"fails in the end":           {[]answer{func(w *writer, seq uint32) { w.fail(unix.NLMSG_DONE, seq, unix.ENOMEM) }}, Filter{}, 0, unix.ENOMEM},
		"garbage":                    {[]answer{garbage}, Filter{}, 0, nlsock.ErrMalformed},
		"garbage for a message":      {[]answer{func(w *writer, _ uint32) { w.B = []byte{1, 2, 3} }}, Filter{}, 0, nlsock.ErrMalformed},
		"garbage for an error":       {[]answer{func(w *writer, seq uint32) { w.plain(unix.NLMSG_ERROR, 0, seq) }}, Filter{}, 0, nlsock.ErrMalformed},
		"still busy with the former": {[]answer{func(w *writer, seq uint32) { fails(unix.EBUSY)(w, seq); lists(0, one)(w, seq-1) }, lists(0, two)}, Filter{}, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			visits := 0
			err := connectToFake(t, c.kernel...).Each(t.Context(), c.filter, func(*Flow) error { visits++; return nil })
			if visits != c.visits || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("visits = %d, error = %v; want %d, %v", visits, err, c.visits, c.err)
			}
		})
	}
}

// TestListThatHangs makes the kernel stop answering during a list. The call must return an error.
// Late answers to this list must not be treated as answers to the next list.
func TestListThatHangs(t *testing.T) {
	one, two := flow(balancer.UDP, "10.1.0.2:1000", "10.96.0.1:53", "10.2.0.1:53"), flow(balancer.TCP, "10.1.0.2:1000", "10.96.0.2:53", "10.2.0.1:53")
	half := func(w *writer, seq uint32) { w.plain(messageNew, unix.NLM_F_MULTI, seq, encode(&one, whole)...) }
	c := connectToFake(t, half, func(w *writer, seq uint32) { lists(0, one)(w, seq-1); lists(0, two)(w, seq) })
	c.lists.Patience = 50 * time.Millisecond
	if err := c.Each(t.Context(), Filter{}, func(*Flow) error { return nil }); err == nil || !strings.Contains(err.Error(), "has not answered") {
		t.Fatal(err)
	}
	c.lists.Patience = wait.Patience
	var found []netip.Addr
	if err := c.Each(t.Context(), Filter{}, func(f *Flow) error { found = append(found, f.Orig.Dst.Addr()); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0] != two.Orig.Dst.Addr() {
		t.Errorf("flows found = %v, want only the flow of the second list", found)
	}
}

// TestCountsOfKernelsInTrouble counts flows while the kernel returns errors, and late answers to
// earlier deletions. Errors must be returned, and late answers must be ignored.
func TestCountsOfKernelsInTrouble(t *testing.T) {
	stats := func(body ...byte) answer {
		return func(w *writer, seq uint32) { w.plain(messageStats, 0, seq, append([]byte{0, 0, 0, 0}, body...)...) }
	}
	for name, c := range map[string]struct {
		kernel answer
		err    error
	}{
		"after a deletion": {func(w *writer, seq uint32) {
			w.fail(unix.NLMSG_ERROR, seq-1, unix.ENOENT)
			stats(8, 0, ctaStatsEntries, 0, 0, 0, 1, 2)(w, seq)
		}, nil},
		"no privilege":   {fails(unix.EPERM), unix.EPERM},
		"no number":      {stats(), nlsock.ErrMalformed},
		"a short number": {stats(5, 0, ctaStatsEntries, 0, 7, 0, 0, 0), nlsock.ErrMalformed},
		"garbage":        {func(w *writer, _ uint32) { w.B = []byte{1, 2, 3} }, nlsock.ErrMalformed},
	} {
		n, err := connectToFake(t, c.kernel).count()
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || err == nil && n != 258 {
			t.Errorf("%s: count = %d, error = %v; want 258 or the error %v", name, n, err, c.err)
		}
	}
}

// TestDeletionsOfKernelsInTrouble deletes several flows in one request. Missing flows must not be
// counted. Older kernels refuse to delete flows in a flowtable. Such flows must not be counted, and
// the first refusal must be returned. Any other error must be returned immediately, because without
// privilege the kernel answers only the first message.
func TestDeletionsOfKernelsInTrouble(t *testing.T) {
	flows := []Flow{
		flow(balancer.UDP, "10.1.0.2:1000", "10.96.0.1:53", "10.2.0.1:53"),
		flow(balancer.UDP, "10.1.0.2:1001", "10.96.0.1:53", "10.2.0.1:53"),
		flow(balancer.UDP, "10.1.0.2:1002", "10.96.0.1:53", "10.2.0.1:53"),
	}
	silence := func(*writer, uint32) {}
	done := fails(0)
	for name, c := range map[string]struct {
		kernel  []answer
		deleted int
		err     string
	}{
		"all there":      {[]answer{silence, silence, done}, 3, ""},
		"the first gone": {[]answer{fails(unix.ENOENT), silence, done}, 2, ""},
		"the last gone":  {[]answer{silence, silence, fails(unix.ENOENT)}, 2, ""},
		"all gone":       {[]answer{fails(unix.ENOENT)}, 0, ""},
		"no privilege":   {[]answer{fails(unix.EPERM), silence}, 0, "10.1.0.2:1000 to 10.96.0.1:53/udp: operation not permitted"},
		"one offloaded":  {[]answer{silence, fails(unix.EBUSY), done}, 2, "10.1.0.2:1001 to 10.96.0.1:53/udp: device or resource busy"},
		"two offloaded":  {[]answer{silence, fails(unix.EBUSY), fails(unix.EBUSY)}, 1, "10.1.0.2:1001 to 10.96.0.1:53/udp: device or resource busy"},
		"garbage":        {[]answer{func(w *writer, _ uint32) { w.B = []byte{1, 2, 3} }}, 0, "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := connectToFake(t, c.kernel...).deleteAll(flows)
			if n != c.deleted || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("deleted flows = %d, %v; want %d, %q", n, err, c.deleted, c.err)
			}
		})
	}
	// Late answers to requests before an error must not be treated as answers to later requests.
	c := connectToFake(t, fails(unix.EPERM), fails(unix.EPERM), fails(unix.EPERM), silence, silence, done)
	if _, err := c.deleteAll(flows); err == nil {
		t.Error("deletion without privilege: error = nil, want an error")
	}
	if n, err := c.deleteAll(flows); n != 3 || err != nil {
		t.Errorf("deleted flows after an error = %d, %v; want 3", n, err)
	}
}
