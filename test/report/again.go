package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A few failing tests of thousands run again, each alone: one that then passes each time failed for what ran beside it. It is
// a defect all the same, of the test or of what it tests, and the report names it with its output. It ends nobody's work.
const fewFailing, timesAgain = 3, 3

// again is what runs the failing tests again: a plan for each. None where too much failed, or what no second run can excuse.
func (s *summary) again(p plan) map[test]plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[test]plan{}
	for _, t := range s.failing {
		if t.name == "" || slices.ContainsFunc(s.output[t], unforgivable) || endedItself(s.output[test{t.pkg, "", t.where}]) {
			return nil
		}
		part := func(other test) bool {
			return other.pkg == t.pkg && other.where == t.where && strings.HasPrefix(other.name, t.name+"/")
		}
		// One with a failing part runs whole where it may have failed by itself, too. Else that part runs.
		if !slices.ContainsFunc(s.failing, part) || slices.ContainsFunc(s.output[t], said) {
			all[t] = p.only(t)
		}
	}
	if len(all) > fewFailing || len(s.builds) > 0 || len(s.begun) > 0 { // what has not ended: its process did
		return nil
	}
	return all
}

// unforgivable says whether a line of output tells of a data race, or of the end of a process: of the test's own, or of one that it has
// started and whose output it logs.
func unforgivable(line string) bool {
	words := strings.TrimSpace(line)
	return strings.Contains(words, "DATA RACE") || strings.Contains(words, "race detected") ||
		strings.HasPrefix(words, "panic: ") || strings.HasPrefix(words, "fatal error: ")
}

// said says whether a line of output is what a test has said, and not the testing package of it.
func said(line string) bool {
	words := strings.TrimSpace(line)
	return words != "" && !strings.HasPrefix(words, "=== ") && !strings.HasPrefix(words, "--- ")
}

// endedItself says whether a package may have failed by more than its tests. It has printed, outside of all of them, what is
// unforgivable; or something after the last of them, as a TestMain does that fails; or not what the testing package prints at the end.
func endedItself(output []string) bool {
	over := false
	for _, line := range output {
		switch {
		case unforgivable(line):
			return true
		case line == "FAIL\n":
			over = true
		case over && line != "PASS\n" && line != "exit status 1\n" && !strings.HasPrefix(line, "FAIL\t"): // other pieces may pass
			return true
		}
	}
	return !over
}

// only is the plan that runs nothing but t, several times.
func (p plan) only(t test) plan {
	var names []string
	for name := range strings.SplitSeq(t.name, "/") {
		names = append(names, "^"+regexp.QuoteMeta(name)+"$")
	}
	flags := append(slices.Clone(p.flags), "-run="+strings.Join(names, "/"), fmt.Sprintf("-count=%d", timesAgain))
	if t.where == "" {
		return plan{flags: flags, packages: []string{t.pkg}, here: true}
	}
	guest := slices.DeleteFunc(slices.Clone(p.guest), func(k pkg) bool { return k.path != t.pkg })
	return plan{flags: flags, packages: []string{t.pkg}, guest: guest}
}

// settle runs the failing tests again by run, and says whether they failed for nothing but what ran beside them.
func (s *summary) settle(p plan, run func(plan, *summary) error) bool {
	all := s.again(p)
	for t, only := range all {
		_, _ = fmt.Fprintf(s.out, "again, alone: %s\n", t)
		alone := newSummary(s.out)
		if err := run(only, alone); err != nil || alone.failed() > 0 || !alone.passed[t] || slices.Contains(alone.skipped, t) {
			return false
		}
	}
	if len(all) == 0 {
		return false
	}
	for _, t := range s.failing {
		if _, ran := all[t]; ran {
			s.unsteady = append(s.unsteady, t)
		} else {
			s.passed[t] = true // it is a test whose parts these are
		}
	}
	s.failing = nil
	return true
}
