package xtables

import (
	"slices"
	"strings"
)

// Chain is the wanted state of a chain.
type Chain struct {
	// Name has up to 28 characters. An existing chain with this name is replaced. Rules in other
	// chains that jump to it remain.
	Name string
	// Rules are in the syntax of iptables-restore, without "-A" and the chain's name.
	Rules []string
}

// NewChain returns a chain with these rules.
func NewChain(name string, rules ...string) Chain { return Chain{Name: name, Rules: rules} }

// Input returns input for iptables-restore that replaces chains in a table and then runs the lines
// in further, in one transaction.
func Input(table string, chains []Chain, further ...string) string {
	var b strings.Builder
	b.WriteString("*" + table + "\n")
	for _, c := range chains {
		b.WriteString(":" + c.Name + " - [0:0]\n")
	}
	for _, c := range chains {
		for _, r := range c.Rules {
			b.WriteString("-A " + c.Name + " " + r + "\n")
		}
	}
	for _, line := range further {
		b.WriteString(line + "\n")
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// TrialChain is a chain that is created and deleted to prove that rules can be written.
const TrialChain = "VIPD-TRIAL"

// Trial returns input for iptables-restore that creates the trial chain with these rules in a
// table, and then deletes the chain.
func Trial(table string, rules ...string) string {
	return Input(table, []Chain{NewChain(TrialChain, rules...)}) + endTrial(table)
}

func endTrial(table string) string {
	return Input(table, []Chain{NewChain(TrialChain)}, "-X "+TrialChain)
}

// Group is a group of chains that must change in the same transaction.
type Group struct {
	// Write lists the chains to create or replace. Their rules may jump to chains of this group in
	// any order, to existing chains, and to chains in earlier groups.
	Write []Chain
	// Delete lists the chains to delete after the writes. By then, no rule may jump to them.
	// Missing chains are not an error.
	Delete []string
}

// Join returns lines for iptables-restore that make rule the base chain's only rule that jumps to
// any of the chains. If rule is empty, the lines only remove rules. The argument rules holds the
// base chain's current rules, in the format of -S. An existing rule keeps its position, because
// other programs may have inserted their rules before it and would do so again.
func Join(rules []string, base, rule string, chains ...string) (lines []string) {
	there := rule == ""
	for _, r := range rules {
		switch {
		case !slices.Contains(chains, targetOf(r)):
		case r == rule && !there:
			there = true
		default:
			lines = append(lines, "-D "+base+" "+r)
		}
	}
	if !there {
		lines = append(lines, "-I "+base+" 1 "+rule)
	}
	return lines
}
