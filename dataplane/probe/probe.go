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

// maxAnswer is the maximum length of an answer, in bytes: an endless answer must not block a check
// or fill the memory.
const maxAnswer = 64 << 10

// maxText is the maximum length of a result's text, in bytes. Parts of it come from the target.
const maxText = 500

// Probe runs the checks of one definition. Many goroutines may call its methods at once.
type Probe struct {
	health *balancer.Health
	proto  balancer.Protocol
	header string // PROXY header, sent first over TCP
	kind   func(*attempt, context.Context) (string, error)
	files  *files // nil if the check does not use TLS
	steps  []step // steps of a TCP check
	// secrets are the texts of the definition that results and transcripts must not show.
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

// attempt is one check under way.
type attempt struct {
	*Probe
	at    netip.AddrPort
	notes *transcript // nil if no transcript is kept
	// interrupts has functions that detach the connections' deadlines from the context.
	interrupts []func() bool
}

// Check checks the target with address at. It returns within the definition's timeout, or slightly
// later if it must kill a program. The outcome is health.NotRun if ctx ended the check, or if it
// failed because this host was too busy to run it.
func (p *Probe) Check(ctx context.Context, at netip.AddrPort) health.Result {
	return p.check(ctx, at, nil)
}

// Exchange is like Check, and also returns a readable transcript of sent and received data. The
// transcript has at most about 16 KiB. It omits the values of secret headers, and data that TCP and
// UDP checks send.
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
		r.Outcome, r.Text = health.NotRun, "stopped before it had ended"
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
// must have suspended it. An answer may then have arrived in time, but been read too late. Exec
// checks are exempt, because killing a program may need time.
func (p *Probe) overslept(took time.Duration) bool {
	return p.health.Type != balancer.ExecHealth && took > p.health.Timeout*3/2
}

// clearInterrupts makes the connections independent of the context.
func (a *attempt) clearInterrupts() {
	for _, stop := range a.interrupts {
		stop()
	}
	a.interrupts = nil
}

// localError is a failure of this host, not of the target.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

func localf(format string, args ...any) error { return &localError{fmt.Errorf(format, args...)} }
