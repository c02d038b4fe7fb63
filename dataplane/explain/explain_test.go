package explain

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"vipd/dataplane"
)

// reading are connections, of which there is one before err; nil means that the rest never comes.
type reading struct{ err error }

func (r reading) Connections(ctx context.Context, _ dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	if err := visit(&dataplane.Connection{Client: netip.MustParseAddrPort("10.1.0.2:4000")}); err != nil || r.err != nil {
		return errors.Join(err, r.err)
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestConnectionWithoutAnAnswer: a client that waits for an endpoint's first answer does not "go on"; one that has just begun is not wrong.
func TestConnectionWithoutAnAnswer(t *testing.T) {
	var a Answer
	n := Node{Connections: waiting{}}
	n.existing(t.Context(), &a, 0)
	if len(a.Steps) != 1 || a.Steps[0].Wrong || !strings.Contains(a.Steps[0].Text, "10.1.0.2:4000 has no answer from 10.0.0.1:8080") {
		t.Errorf("%+v", a.Steps)
	}
}

// waiting is one connection to which the endpoint has said nothing.
type waiting struct{}

func (waiting) Connections(_ context.Context, _ dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	return visit(&dataplane.Connection{
		Client: netip.MustParseAddrPort("10.1.0.2:4000"), Backend: netip.MustParseAddrPort("10.0.0.1:8080"), State: unanswered,
	})
}

// TestConnectionsThatCannotBeRead: what is known is told, with why there is no more.
func TestConnectionsThatCannotBeRead(t *testing.T) {
	for want, err := range map[string]error{"did not come to its end in time": nil, "can't be read: no conntrack here": errors.New("no conntrack here")} {
		synctest.Test(t, func(t *testing.T) {
			var a Answer
			n := Node{Connections: reading{err}}
			n.existing(t.Context(), &a, 0)
			if len(a.Existing) != 1 || len(a.Steps) != 2 || !strings.Contains(a.Steps[1].Text, want) || a.Steps[1].Wrong {
				t.Errorf("%+v, want one connection, and %q", a, want)
			}
		})
	}
}
