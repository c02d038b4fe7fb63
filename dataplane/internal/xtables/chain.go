package xtables

import (
	"slices"
	"strings"
)

// Chain is one chain as it shall be.
type Chain struct {
	// Name is the chain's, of up to 28 characters. A chain of that name is replaced, rules of other chains go on leading
	// to it.
	Name string
	// Rules are in the syntax of iptables-restore, without "-A" and the name.
	Rules []string
}

// NewChain returns a chain of these rules.
func NewChain(name string, rules ...string) Chain { return Chain{Name: name, Rules: rules} }

// Input is the input of a restore that makes chains of a table what they should be, whatever they were, and runs further lines
// in the same transaction.
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

// TrialChain is the chain that is made and deleted to prove that rules can be written.
const TrialChain = "VIPD-TRIAL"

// Trial is the input of a restore that makes the trial chain of a table, with rules, and deletes it.
func Trial(table string, rules ...string) string {
	return Input(table, []Chain{NewChain(TrialChain, rules...)}) + endTrial(table)
}

func endTrial(table string) string {
	return Input(table, []Chain{NewChain(TrialChain)}, "-X "+TrialChain)
}

// Group is chains that have to change together: one transaction, all or nothing.
type Group struct {
	// Write are the chains to create or replace. They may lead to each other in any order, and to chains that exist or
	// that an earlier group writes.
	Write []Chain
	// Delete are the chains to empty and delete, after those that are written: rules must not lead to them any more.
	// Those that are absent are no error.
	Delete []string
}

// Join returns the lines of a restore that make rule, as -S prints it, the only one among the rules of a base chain that leads to any
// of the chains; the empty rule means that none shall. Where it is there it stays in its place: others may have put theirs before
// it, and would do so again.
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
