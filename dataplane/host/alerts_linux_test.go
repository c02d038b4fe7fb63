package host

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"vipd/test/lab"
)

// TestAlerts changes rules and addresses as another program might. Each change must cause an alert.
func TestAlerts(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "iptables-nft")
	l := lab.New(t)
	alerts := make(chan struct{}, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	all, err := openAlerts()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(ended)
		(&handles{alerts: all}).Alerts(ctx, func() { alerts <- struct{}{} })
	}()
	for _, change := range []func(){
		func() { must(t, exec.Command("iptables-nft", "-N", "FOREIGN").Run()) },
		func() { must(t, exec.Command("ip6tables-nft", "-t", "nat", "-N", "FOREIGN").Run()) },
		func() { l.Host().AddAddr("lo", "192.0.2.7/32") },
	} {
		for len(alerts) > 0 {
			<-alerts
		}
		change()
		lab.Eventually(t, deadlineIn, "an alert", func() error {
			if len(alerts) == 0 {
				return errors.New("there was no alert")
			}
			return nil
		})
	}
	cancel()
	<-ended
	must(t, all.close())
	must(t, exec.Command("iptables-nft", "-X", "FOREIGN").Run())
	must(t, exec.Command("ip6tables-nft", "-t", "nat", "-X", "FOREIGN").Run())
}
