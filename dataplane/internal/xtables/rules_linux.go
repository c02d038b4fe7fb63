package xtables

import (
	"context"
	"fmt"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"vipd/dataplane/internal/inet"
)

// Rules returns the rules of an existing chain in order. They have the format of -S, without "-A"
// and the chain's name. The cost grows with the size of the chain.
func (t *Tool) Rules(ctx context.Context, table, chain string) (rules []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	reader, err := t.reader()
	if err != nil {
		return nil, err
	}
	lines, err := reader.List(table, chain)
	if err != nil {
		return nil, fmt.Errorf("reading chain %s of table %s: %w", chain, table, err)
	}
	for _, line := range lines {
		if rule, ok := strings.CutPrefix(line, "-A "+chain+" "); ok {
			rules = append(rules, rule)
		}
	}
	return rules, nil
}

// newReader returns a reader for a tool's rules. It runs the program to determine the program's
// version.
func newReader(t *Tool) (*iptables.IPTables, error) {
	family := iptables.ProtocolIPv4
	if t.family == inet.IPv6 {
		family = iptables.ProtocolIPv6
	}
	reader, err := iptables.New(iptables.Path(t.program), iptables.IPFamily(family), iptables.Timeout(waitSeconds))
	if err != nil {
		return nil, fmt.Errorf("asking %s for its version: %w", t.program, err)
	}
	return reader, nil
}
