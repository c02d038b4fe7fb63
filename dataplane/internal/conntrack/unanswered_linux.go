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
	"vipd/balancer/lib/wake"
)

// Unanswered finds backends that refuse or do not answer new connections. It uses the kernel's
// reports about the calling thread's network namespace:
//
//   - A refused TCP connection ends immediately, before its flow has a reply, and the kernel
//     reports the end. A socket filter in the kernel drops the ends of all other flows.
//   - An unanswered connection is a TCP flow in syn-sent, or an SCTP flow before INIT ACK, that
//     still exists at a later check. A check scans the whole table, at about 0.3 us for each flow
//     and 30 ns for each bucket (8 ms for the 262,144 buckets of a host with 16 GiB), but lists
//     only flows without a reply.
//
// Checks use at most half a percent of a core, because the pause between them grows with the table.
// If refusals are reported, each flow that ends costs the kernel 1.4 us more.
type Unanswered struct {
	conn     *Conn
	ends     *Ends // nil if refusals are not reported
	targetOf func(*Flow) (balancer.Target, bool)
	found    func(Suspect)

	foundMu sync.Mutex // held while found is called
	began   time.Time
	looked  uint32 // number of finished checks
	silent  map[uint32]silence
}

// Suspect is a new connection that a backend has refused or has not answered yet. It is valid until
// found returns.
type Suspect struct {
	Flow   *Flow
	Target balancer.Target
	// Counted reports whether the connection was unanswered for long enough to count as a failure.
	// It is set once for each flow.
	Counted bool
}

// silence is a flow that waits for an answer.
type silence struct {
	since             time.Duration // when a check first found the flow, measured from the first check of all
	look              uint32        // number of the last check that found the flow
	reported, counted bool
}

const (
	// lookPause is the minimum pause between two checks, and so the minimum time before a
	// connection is reported. It exceeds a second because a client repeats a lost SYN after a
	// second, and the repeated SYN may be answered.
	lookPause = 1200 * time.Millisecond
	// lookShare limits checks to 1/lookShare of a core.
	lookShare = 200
	// An unanswered TCP connection counts as a failure after countAfter. By then, the client has
	// repeated its SYN twice. An SCTP association counts when it is reported, because the kernel
	// drops its flow 3 s after each INIT.
	countAfter = 3 * time.Second
	// maxSilent is the maximum number of unanswered flows in memory (about 12 MB). Additional flows
	// are not reported.
	maxSilent = 1 << 18
)

// NewUnanswered opens connections to the kernel, which Run closes. The function "of" must return a
// flow's backend, or false if the flow is irrelevant. The function "found" is called when two
// checks have found a flow unanswered or, if refusals is set, when a flow was refused. It is called
// again when the flow counts as a failure. Calls to it do not overlap.
func NewUnanswered(refusals bool, of func(*Flow) (balancer.Target, bool), found func(Suspect)) (*Unanswered, error) {
	conn, err := Open()
	if err != nil {
		return nil, err
	}
	u := &Unanswered{conn: conn, targetOf: of, found: found, silent: map[uint32]silence{}}
	if !refusals {
		return u, nil
	}
	if u.ends, err = subscribeTo(unrepliedOnly(), groupDestroy); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return u, nil
}

// Run makes checks until ctx is done, and then returns nil. It must be called only once.
func (u *Unanswered) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if u.ends == nil {
		return errors.Join(u.looks(ctx), u.conn.Close())
	}
	var running sync.WaitGroup
	var failed error
	running.Go(func() {
		failed = u.ends.Run(ctx, u.ended, func() {}) // lost reports do not matter, because other refusals have been reported
		cancel()
	})
	err := u.looks(ctx)
	cancel()
	running.Wait()
	return errors.Join(err, failed, u.ends.Close(), u.conn.Close())
}

// ended processes a flow that has ended. A refused flow has changed from syn-sent to close.
func (u *Unanswered) ended(f *Flow) {
	if f.Proto == balancer.TCP && f.State == "close" && !f.Status.Has(SeenReply) {
		if t, ours := u.targetOf(f); ours {
			u.report(Suspect{Flow: f, Target: t})
		}
	}
}

func (u *Unanswered) report(s Suspect) {
	u.foundMu.Lock()
	defer u.foundMu.Unlock()
	u.found(s)
}

func (u *Unanswered) looks(ctx context.Context) error {
	runtime.LockOSThread() // the thread's CPU time is measured
	defer runtime.UnlockOSThread()
	u.began = time.Now()
	pause := time.Duration(0)
	for pause == 0 || wake.Sleep(ctx, pause) {
		before := threadTime()
		if err := u.look(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, errDisturbed) {
			return fmt.Errorf("searching for unanswered connections: %w", err)
		}
		pause = max(lookPause, lookShare*(threadTime()-before))
	}
	return nil
}

// threadTime returns the CPU time of the calling thread, in the kernel and in user space.
func threadTime() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &r) // getrusage(2) fails only with wrong arguments
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// look performs a check. It reports flows that an earlier check also found unanswered. It does not
// count the flows that the first check finds, because an earlier process or mode may have counted
// them.
func (u *Unanswered) look(ctx context.Context) error {
	u.looked++
	now := time.Since(u.began)
	err := u.conn.Each(ctx, Filter{Unreplied: true}, func(f *Flow) error {
		if !f.opening() {
			return nil
		}
		if t, ours := u.targetOf(f); ours {
			u.wait(f, t, now)
		}
		return nil
	})
	if err == nil { // otherwise the list may be incomplete
		for id, s := range u.silent {
			if s.look != u.looked {
				delete(u.silent, id)
			}
		}
	}
	return err
}

// wait records that a flow is still unanswered. It reports the flow if an earlier check also found
// it.
func (u *Unanswered) wait(f *Flow, t balancer.Target, now time.Duration) {
	s, known := u.silent[f.id]
	if !known {
		if len(u.silent) < maxSilent {
			u.silent[f.id] = silence{since: now, look: u.looked, counted: u.looked == 1}
		}
		return
	}
	again := s.look != u.looked // false if this listing has already returned the flow
	s.look = u.looked
	if again && !s.reported {
		s.reported = true
		u.report(Suspect{Flow: f, Target: t})
	}
	if again && !s.counted && (f.Proto == balancer.SCTP || now-s.since >= countAfter) {
		s.counted = true
		u.report(Suspect{Flow: f, Target: t, Counted: true})
	}
	u.silent[f.id] = s
}

// opening reports whether the client has sent only the first packet of a connection, without a
// reply so far. The corresponding SCTP states differ between kernels.
func (f *Flow) opening() bool {
	switch f.Proto {
	case balancer.TCP:
		return f.State == "syn-sent"
	case balancer.SCTP:
		return f.State == "cookie-wait" || f.State == "closed"
	}
	return false
}

// unrepliedOnly returns a socket filter that accepts reports of ended flows that had no reply:
// messages in which the bit SEEN_REPLY of the attribute CTA_STATUS is clear
// (Documentation/networking/filter.rst, SKF_AD_NLATTR).
func unrepliedOnly() []unix.SockFilter {
	const nlattr = 0xfffff000 + 12 // SKF_AD_OFF + SKF_AD_NLATTR
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_IMM, K: unix.SizeofNlMsghdr + headerSize},
		{Code: unix.BPF_LDX | unix.BPF_IMM, K: ctaStatus},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nlattr}, // A = offset of the attribute, or 0
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 4},
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_IND, K: unix.SizeofNlAttr},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: uint32(SeenReply), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
}
