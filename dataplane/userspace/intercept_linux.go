package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"vipd/dataplane/internal/xtables"
)

// probing bounds the trials of iptables.
const probing = 30 * time.Second

// newInterception returns what was asked for, and how it came to that in words.
func newInterception(want Interception, d *Dataplane) (interception, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probing)
	defer cancel()
	switch want {
	case Bind:
		return bind{}, "bind", nil
	case Redirect, Auto, "":
		r, err := newRedirect(ctx, d)
		if err != nil && want == Redirect {
			return nil, "", fmt.Errorf("intercepting by redirect: %w", err)
		}
		if err != nil {
			return bind{}, "bind, because " + strings.ReplaceAll(err.Error(), "\n", "; "), nil
		}
		for _, f := range xtables.Families() {
			if r.families[f] == nil {
				return r, fmt.Sprintf("redirect, but bind for %s, where iptables does not work", f), nil
			}
		}
		return r, "redirect", nil
	}
	return nil, "", fmt.Errorf("unknown interception %q: auto, redirect and bind are possible", want)
}

// Cleanup removes the rules of the redirect interception, whichever process made them, and nothing else.
func Cleanup(ctx context.Context) error {
	var failed error
	for _, family := range xtables.Families() {
		for _, backend := range []xtables.Backend{xtables.NFT, xtables.Legacy} {
			if backend == xtables.Legacy && !legacyNAT(family) {
				continue // looking would load the table
			}
			tool, err := xtables.Find(ctx, family, backend, slog.New(slog.DiscardHandler))
			if unsupported := (*xtables.UnsupportedError)(nil); errors.As(err, &unsupported) {
				continue // then nothing of ours can be there
			}
			if err == nil {
				err = remove(ctx, tool)
			}
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("removing redirects of %s (%s): %w", family, backend, err))
			}
		}
	}
	return failed
}

// legacyNAT reports whether the legacy nat table is loaded.
func legacyNAT(family xtables.Family) bool {
	file := "/proc/thread-self/net/ip_tables_names"
	if family == xtables.IPv6 {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	text, err := os.ReadFile(file)
	return err == nil && strings.Contains(string(text), "nat\n")
}

func addrOf(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}
