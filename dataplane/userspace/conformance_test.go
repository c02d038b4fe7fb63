//go:build linux

package userspace

import (
	"context"
	"log/slog"
	"testing"

	"vipd/dataplane"
	"vipd/dataplane/dataplanetest"
	"vipd/dataplane/host"
)

func TestConformance(t *testing.T) {
	subject := func(intercept Interception) dataplanetest.Subject {
		return dataplanetest.Subject{
			Name:         "userspace, " + string(intercept),
			ExactWeights: true,
			New: func(t testing.TB) dataplane.Dataplane {
				d, err := New(Options{Log: slog.New(slog.DiscardHandler), Intercept: intercept})
				if err != nil {
					t.Fatal(err)
				}
				return d
			},
		}
	}
	// On a bare host, without guard and iptables.
	t.Run("bind", func(t *testing.T) { dataplanetest.Run(t, subject(Bind)) })
	t.Run("bind-guarded", func(t *testing.T) {
		s := subject(Bind)
		s.Host = guarded
		dataplanetest.Run(t, s)
	})
	t.Run("redirect", func(t *testing.T) {
		if _, err := New(Options{Intercept: Redirect}); err != nil {
			t.Skip("needs redirection: ", err)
		}
		s := subject(Redirect)
		s.Host = guarded
		dataplanetest.Run(t, s)
	})
}

// guarded is the host as vipd keeps it.
func guarded(t testing.TB) dataplane.Host {
	t.Helper()
	h, err := host.New(host.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Release(context.Background()); err != nil {
			t.Errorf("releasing the host: %v", err)
		}
		if err := h.Close(); err != nil {
			t.Errorf("closing the host: %v", err)
		}
	})
	return h
}
