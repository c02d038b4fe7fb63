package ipvsnl

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// kernel returns a Client for the kernel's IPVS. It deletes all virtual servers immediately, and
// again at the end of the test.
func kernel(t testing.TB) *Client {
	t.Helper()
	lab.NeedIPVS(t)
	k, err := Open(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(empty(context.Background(), k), k.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := empty(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	return k
}

// empty deletes all virtual servers, except virtual servers with firewall marks.
func empty(ctx context.Context, c Conn) error {
	all, err := c.Services(ctx)
	if err != nil {
		return err
	}
	ops := make([]Op, len(all))
	for i, s := range all {
		ops[i] = Op{Verb: DeleteService, Service: s.Service}
	}
	return errors.Join(c.Do(ctx, ops)...)
}

// do makes changes, and fails the test if any change fails.
func do(t testing.TB, c Conn, ops ...Op) {
	t.Helper()
	if err := errors.Join(c.Do(t.Context(), ops)...); err != nil {
		t.Fatal(err)
	}
}

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func sortedServices(all []ServiceState) []ServiceState {
	slices.SortFunc(all, func(a, b ServiceState) int { return a.Key.Compare(b.Key) })
	return all
}

// seen holds all data that can be read through a Conn.
type seen struct {
	Services     []ServiceState
	Single       []ServiceState
	Destinations map[balancer.Key][]DestinationState
	Table        map[balancer.Key]TableService
	Services4    int
}

func readServers(t *testing.T, c Conn) (s seen) {
	t.Helper()
	var err error
	if s.Services, err = c.Services(t.Context()); err != nil {
		t.Fatal(err)
	}
	sortedServices(s.Services)
	s.Destinations = map[balancer.Key][]DestinationState{}
	for _, v := range s.Services {
		single, err := c.Service(t.Context(), v.Key)
		if err != nil {
			t.Fatal(err)
		}
		s.Single = append(s.Single, single)
		if s.Destinations[v.Key], err = c.Destinations(t.Context(), v.Key); err != nil {
			t.Fatal(err)
		}
	}
	if s.Table, err = c.Table(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.Services4, err = c.Services4(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}
