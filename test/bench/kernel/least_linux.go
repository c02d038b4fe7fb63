package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// least is a host with the maps of nftables mode, its one chain that chooses, and the chains of its
// guard, empty. It shows the cost of these lookups, a mark and counters before vipd adds a rule.
type least struct{ spec }

func (l least) load(ctx context.Context) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(l.text())
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("running %s: %w\n%s", cmd, err, out)
	}
	return time.Since(began), nil
}

// text returns the table in nft's syntax.
func (l least) text() string {
	var frontends, eps strings.Builder
	for i, vip := range vips(l.Services) {
		fmt.Fprintf(&frontends, "%s . tcp . %d : 0:2, ", vip, servicePort)
		for j := range l.Endpoints {
			fmt.Fprintf(&eps, "%s . tcp . %d . %d : %s . %d, ", vip, servicePort, j, endpoint(i*l.Endpoints+j), targetPort)
		}
	}
	return fmt.Sprintf(`table ip least {
	map frontends { typeof ip daddr . meta l4proto . th dport : meta priority; elements = { %s }; }
	map eps { typeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport; counter; elements = { %s }; }
	chain chosen {
		meta priority set 0:0 ct mark set ct mark | 0x8000 dnat ip to ip daddr . meta l4proto . th dport . numgen random mod %d map @eps
	}
	map choices { typeof meta priority : verdict; elements = { 0:2 : goto chosen }; }
	chain sorting { type nat hook prerouting priority -110; }
	chain prerouting { type nat hook prerouting priority -105; meta priority set ip daddr . meta l4proto . th dport map @frontends meta priority vmap @choices; }
	chain source { type nat hook postrouting priority 96; }
	chain sizes { type filter hook postrouting priority -150; }
}
`, frontends.String(), eps.String(), l.Endpoints)
}

func (l least) change(context.Context, measure, int) (time.Duration, error) {
	return 0, fmt.Errorf("the least has nothing to change")
}

func (l least) stop() {}
