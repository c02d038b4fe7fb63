package conntrack

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/balancer/wake"
)

// Unanswered finds backends that refuse new TCP connections, or leave them without an answer, from what the kernel tells of
// the calling thread's network namespace:
//
//   - The flow of a connection that is refused ends at once, before it has seen a reply, and the end is told. The kernel
//     itself is given a filter, so that the ends of all other flows wake no reader.
//   - A connection without an answer is a flow in syn-sent, which is there at one look and still there at the next. A look
//     walks the whole table, at some 0.3 us a flow and 30 ns a bucket (8 ms at the 262,144 that a host of 16 GiB has), but
//     only flows without a reply are listed.
//
// of says which backend a flow is to; false: it is of no interest. tell is called for each flow once, by one goroutine at a
// time. Looks take at most half a hundredth of a core, and are the rarer for it where the table is large, not where the host is busy;
// while another reader listens to ends, each costs the kernel 1.4 us more. Run ends with ctx, and returns nil then.
type Unanswered struct {
	conn *Conn
	ends *Ends
	of   func(*Flow) (balancer.Target, bool)
	tell func(balancer.Target)

	telling sync.Mutex // held while tell is called
	seen    map[silence]bool
}

// silence is a flow that waits for an answer.
type silence struct {
	id   uint32
	orig Tuple
}

const (
	// lookPause is the least time between two looks, and so what a connection has to wait to be told: a backend on the way
	// of which one packet was lost answers the second SYN, which comes after a second.
	lookPause = 1200 * time.Millisecond
	// lookShare: looks take at most one part in so many of a core.
	lookShare = 200
	// mostSilences is how many flows to one backend are kept from one look to the next.
	mostSilences = 64
)

// NewUnanswered opens what is needed; Run closes it.
func NewUnanswered(of func(*Flow) (balancer.Target, bool), tell func(balancer.Target)) (*Unanswered, error) {
	conn, err := Open()
	if err != nil {
		return nil, err
	}
	ends, err := subscribeTo(unrepliedOnly(), groupDestroy)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Unanswered{conn: conn, ends: ends, of: of, tell: tell, seen: map[silence]bool{}}, nil
}

// Run looks until ctx ends. It is called once.
func (u *Unanswered) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	var failed error
	running.Go(func() {
		failed = u.ends.Run(ctx, u.ended, func() {}) // of a flood of refusals some will do
		cancel()
	})
	err := u.looks(ctx)
	cancel()
	running.Wait()
	return errors.Join(err, failed, u.ends.Close(), u.conn.Close())
}

// ended takes in the end of a flow: refused, it went from syn-sent to close.
func (u *Unanswered) ended(f *Flow) {
	if f.Proto == balancer.TCP && f.State == "close" && !f.Status.Has(SeenReply) {
		if t, ours := u.of(f); ours {
			u.suspect(t)
		}
	}
}

func (u *Unanswered) suspect(t balancer.Target) {
	u.telling.Lock()
	defer u.telling.Unlock()
	u.tell(t)
}

func (u *Unanswered) looks(ctx context.Context) error {
	runtime.LockOSThread() // whose time on a core is read
	defer runtime.UnlockOSThread()
	pause := lookPause
	for wake.Sleep(ctx, pause) {
		before := threadTime()
		if err := u.look(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, errDisturbed) {
			return fmt.Errorf("looking for connections without an answer: %w", err)
		}
		pause = max(lookPause, lookShare*(threadTime()-before))
	}
	return nil
}

// threadTime is for how long the calling thread has had a core, in the kernel and outside.
func threadTime() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &r) // which fails for wrong arguments only (getrusage(2))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// look tells of the flows that waited for an answer at the last look already, once each.
func (u *Unanswered) look(ctx context.Context) error {
	seen, of := map[silence]bool{}, map[balancer.Target]int{}
	err := u.conn.Each(ctx, Filter{Unreplied: true}, func(f *Flow) error {
		if f.Proto != balancer.TCP || f.State != "syn-sent" {
			return nil
		}
		t, ours := u.of(f)
		if !ours || of[t] == mostSilences {
			return nil
		}
		of[t]++
		s := silence{f.id, f.Orig}
		told, before := u.seen[s]
		if before && !told {
			u.suspect(t)
		}
		seen[s] = before
		return nil
	})
	u.seen = seen
	return err
}

// unrepliedOnly is a socket filter that lets ends of flows through that have seen no reply: the attribute CTA_STATUS of the
// message (Documentation/networking/filter.rst, SKF_AD_NLATTR), if it is there, without the bit.
func unrepliedOnly() []unix.SockFilter {
	const nlattr = 0xfffff000 + 12 // SKF_AD_OFF + SKF_AD_NLATTR
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_IMM, K: unix.SizeofNlMsghdr + headerSize},
		{Code: unix.BPF_LDX | unix.BPF_IMM, K: ctaStatus},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nlattr}, // A = where it is, 0 means nowhere
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 4},
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_IND, K: unix.SizeofNlAttr},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: uint32(SeenReply), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
}
