package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
)

// maxAnswer is how much of an answer is read: an endless one must not hold a check or its memory.
const maxAnswer = 64 << 10

// maxText is the maximum length of a result's text in bytes. Parts of it are the target's words.
const maxText = 500

// Probe runs the checks that one definition asks for. Its methods may be called by many goroutines at once.
type Probe struct {
	health *balancer.Health
	proto  balancer.Protocol
	header string // sent first over TCP
	kind   func(*attempt, context.Context) (string, error)
	files  *files // nil means no TLS
}

// New returns the probe for a subject, whose address it ignores. The definition was validated, and must not change.
func New(s health.Subject) *Probe { return newProbe(s, &systemStore{}) }

func newProbe(s health.Subject, system *systemStore) *Probe {
	h := s.Health
	p := &Probe{health: h, proto: s.Proto, header: localHeader(s.Header), kind: kinds()[h.Type]}
	if h.Type == balancer.HTTPSHealth || h.Type == balancer.GRPCHealth && grpcOverTLS(h) {
		p.files = newFiles(h, system)
	}
	return p
}

func kinds() map[balancer.HealthType]func(*attempt, context.Context) (string, error) {
	return map[balancer.HealthType]func(*attempt, context.Context) (string, error){
		balancer.TCPHealth:   (*attempt).tcp,
		balancer.HTTPHealth:  (*attempt).http,
		balancer.HTTPSHealth: (*attempt).http,
		balancer.GRPCHealth:  (*attempt).grpc,
		balancer.DNSHealth:   (*attempt).dns,
		balancer.UDPHealth:   (*attempt).udp,
		balancer.ExecHealth:  (*attempt).exec,
	}
}

// attempt is one check under way.
type attempt struct {
	*Probe
	at    netip.AddrPort
	notes *transcript // nil means no transcript is kept
	// interrupts are those that end waiting for a connection with the context, to be called off at the end.
	interrupts []func() bool
}

// Check checks the target at at once. It takes at most the definition's timeout, and little more where that is spent
// on ending a program. A check that ctx ends comes to health.NotRun, and so does one that fails because this host did not get
// round to it.
func (p *Probe) Check(ctx context.Context, at netip.AddrPort) health.Result {
	return p.check(ctx, at, nil)
}

// Exchange does what Check does, and returns what was sent and received for people to read: at most some 16 KiB, without
// the values of headers that carry secrets. What it came to is in the result alone.
func (p *Probe) Exchange(ctx context.Context, at netip.AddrPort) (health.Result, string) {
	notes := &transcript{secrets: secretsOf(p.health)}
	r := p.check(ctx, at, notes)
	ended := string(r.Outcome)
	if r.Outcome == health.NotRun {
		ended = "given up"
	}
	notes.note("%s after %s", ended, r.Took.Round(10*time.Microsecond))
	return r, notes.String()
}

func (p *Probe) check(ctx context.Context, at netip.AddrPort, notes *transcript) health.Result {
	r := health.Result{Outcome: health.Passed, Began: time.Now()}
	a := &attempt{Probe: p, at: at, notes: notes}
	limited, cancel := context.WithTimeout(ctx, p.health.Timeout)
	text, err := a.kind(a, limited)
	a.callOff()
	cancel()
	r.Took = time.Since(r.Began)
	var local *localError
	switch {
	case err == nil:
		r.Text = text
	case ctx.Err() != nil:
		r.Outcome, r.Text = health.NotRun, "stopped before it was over"
	case errors.As(err, &local):
		r.Outcome, r.Text = health.NotRun, "not run: "+err.Error()
	case p.overslept(r.Took):
		r.Outcome, r.Text = health.NotRun, "not run: this host was too busy to look in time, or asleep"
	default:
		r.Outcome, r.Text = health.Failed, err.Error()
	}
	r.Text = cutTo(maxText, r.Text)
	return r
}

// overslept reports whether a check that failed took so much longer than it may that this host has not been running it:
// what came in time may have been seen too late. Programs take as long as it takes to end them.
func (p *Probe) overslept(took time.Duration) bool {
	return p.health.Type != balancer.ExecHealth && took > p.health.Timeout*3/2
}

// callOff takes the connections' deadlines from the context.
func (a *attempt) callOff() {
	for _, stop := range a.interrupts {
		stop()
	}
	a.interrupts = nil
}

// localError is a reason on this host, and none of the target's.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

func localf(format string, args ...any) error { return &localError{fmt.Errorf(format, args...)} }
