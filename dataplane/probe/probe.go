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

// maxAnswer is the maximum length of an answer, in bytes. Without it, an endless answer would block
// a check or use up memory.
const maxAnswer = 64 << 10

// maxText is the maximum length of a result's text, in bytes. Targets control parts of the text.
const maxText = 500

// Probe runs the checks of one definition. It is safe for concurrent use.
type Probe struct {
	health *balancer.Health
	proto  balancer.Protocol
	header string // PROXY header to send first, or ""
	kind   func(*attempt, context.Context) (string, error)
	files  *files // nil if the check does not use TLS
	steps  []step // steps of a TCP check
	// secrets holds the strings in the definition that results and transcripts must not show.
	secrets []string
}

// newProbe returns the probe for a subject, whose address it ignores. The definition must be valid
// and must not change.
func newProbe(s health.Subject, system *systemStore) *Probe {
	h := s.Health
	p := &Probe{health: h, proto: s.Proto, header: localHeader(s.Header), kind: kinds()[h.Type], secrets: secretsOf(h)}
	if h.IsAgent() {
		p.kind = (*attempt).agent
	}
	if h.Type == balancer.TCPHealth {
		p.steps = stepsOf(h)
	}
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

// attempt is a single check in progress.
type attempt struct {
	*Probe
	at    netip.AddrPort
	notes *transcript // nil if no transcript is requested
	// interrupts holds functions that detach the connections' deadlines from the context.
	interrupts []func() bool
}

// Check runs a check against the address at. It returns within the definition's timeout, or
// slightly later if it must kill a program. The outcome is health.NotRun if ctx was canceled, or if
// this host could not run the check, for example because it was too busy.
func (p *Probe) Check(ctx context.Context, at netip.AddrPort) health.Result {
	return p.check(ctx, at, nil)
}

// Exchange is like Check, but also returns a readable transcript of sent and received data. The
// transcript has at most about 16 KiB. It omits the values of secret headers, and the data that TCP
// and UDP checks send.
func (p *Probe) Exchange(ctx context.Context, at netip.AddrPort) (health.Result, string) {
	notes := &transcript{secrets: p.secrets, hideSent: p.health.Type == balancer.TCPHealth || p.health.Type == balancer.UDPHealth}
	r := p.check(ctx, at, notes)
	outcome := string(r.Outcome)
	if r.Outcome == health.NotRun {
		outcome = "given up"
	}
	notes.note("%s after %s", outcome, r.Took.Round(10*time.Microsecond))
	return r, notes.String()
}

func (p *Probe) check(ctx context.Context, at netip.AddrPort, notes *transcript) health.Result {
	r := health.Result{Outcome: health.Passed, Began: time.Now()}
	a := &attempt{Probe: p, at: at, notes: notes}
	limited, cancel := context.WithTimeout(ctx, p.health.Timeout)
	text, err := a.kind(a, limited)
	a.clearInterrupts()
	cancel()
	r.Took = time.Since(r.Began)
	var local *localError
	switch {
	case err == nil:
		r.Text = text
	case ctx.Err() != nil:
		r.Outcome, r.Text = health.NotRun, "stopped before the check ended"
	case errors.As(err, &local):
		r.Outcome, r.Text = health.NotRun, "not run: "+err.Error()
	case p.overslept(r.Took):
		r.Outcome, r.Text = health.NotRun, "not run: this host was suspended, or too busy to read the answer in time"
	default:
		r.Outcome, r.Text = health.Failed, err.Error()
	}
	r.Text = cutTo(maxText, r.Text)
	return r
}

// overslept reports whether a failed check lasted so much longer than its timeout that this host
// must have been suspended or too busy. In this case, an answer may have arrived in time but was
// read too late. Exec checks are exempt, because killing a program may take time.
func (p *Probe) overslept(took time.Duration) bool {
	return p.health.Type != balancer.ExecHealth && took > p.health.Timeout*3/2
}

// clearInterrupts prevents a canceled context from interrupting the connections.
func (a *attempt) clearInterrupts() {
	for _, stop := range a.interrupts {
		stop()
	}
	a.interrupts = nil
}

// localError is a failure of this host and not of the target.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

func localf(format string, args ...any) error { return &localError{fmt.Errorf(format, args...)} }
