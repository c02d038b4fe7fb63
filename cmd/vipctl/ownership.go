package main

import (
	"fmt"
	"strings"
	"time"

	"vipd/cmd/internal/cli"
)

func ownershipVerb() *cli.Verb {
	return &cli.Verb{
		Name: "ownership", Args: "rekey", Brief: "replace the key that signs heartbeats of hosts that own VIPs",
		About: `"ownership rekey" replaces the key that signs heartbeats of the hosts that may
own VIPs (hold = "one"). VIPs do not move, and are served without a pause. All
hosts first accept the new key, sign with it after 3 s, and refuse the old key
after 3 s more. Use it if the key may have leaked.

All hosts must follow etcd during these 6 s. If one does not, the command
refuses to start unless --force is given; the other hosts then ignore that
host's heartbeats.`,
		Example: "vipctl ownership rekey",
		Flags:   []cli.Flag{&cli.BoolFlag{Name: "force", Usage: "replace the key even if a host does not follow etcd"}},
		Formats: []string{cli.FormTable, cli.FormJSON}, Fleet: true, MinArgs: 1, MaxArgs: 1,
		Complete: cli.InTurn(cli.OneOf("rekey")), Run: runOwnership,
	}
}

// rekeyPause is the pause between the steps of a key change. In the first pause, all hosts learn
// the new key. In the second, they start to use it, before the old key is rejected.
const rekeyPause = 3 * time.Second

func runOwnership(c *cli.Call) error {
	if c.Args[0] != "rekey" {
		return cli.WrongUse("\"vipctl ownership\" has the command rekey, not %q; \"vipctl get vips\" lists VIPs' owners", c.Args[0])
	}
	w, err := c.Etcd()
	if err != nil {
		return err
	}
	if away, err := w.Unregistered(c); err != nil {
		return err
	} else if len(away) > 0 && !c.Flags.Bool("force") {
		return fmt.Errorf("hosts that can own VIPs do not follow etcd now, and would not receive the new key: %s. Start vipd owner on them, or use --force", strings.Join(away, ", "))
	}
	if err := w.RekeyOwnership(c, rekeyPause); err != nil {
		return err
	}
	return c.Show(map[string]any{"rekeyed": true}, func() string { return "heartbeats have a new key, and the previous key is refused\n" })
}
