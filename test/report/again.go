package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// If only a few of thousands of tests fail, they run again, each alone. A test that now passes each
// time failed because of the load. That is still a defect in the test or in the product, so the
// report shows the test with its output, but the run does not fail.
const fewFailing, timesAgain = 8, 2

// failingTests returns a plan for each failing test. It returns nil if too many tests failed, or if
// passing a second time can't excuse the failure.
func (s *summary) failingTests(p plan) map[test]plan {
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
		// If a subtest failed, its parent runs as a whole only if it may also have failed itself.
		// Otherwise only the subtest runs.
		if !slices.ContainsFunc(s.failing, part) || slices.ContainsFunc(s.output[t], saidByTest) {
			all[t] = p.only(t)
		}
	}
	if len(all) > fewFailing || len(s.builds) > 0 || len(s.begun) > 0 { // a process that exited early also stopped its other tests
		return nil
	}
	return all
}

// unforgivable reports whether a line of output is about a data race or a crash, of the test's own
// process or of a process whose output the test logs.
func unforgivable(line string) bool {
	words := strings.TrimSpace(line)
	return strings.Contains(words, "DATA RACE") || strings.Contains(words, "race detected") ||
		strings.HasPrefix(words, "panic: ") || strings.HasPrefix(words, "fatal error: ")
}

// saidByTest reports whether a line of output comes from a test and not from the testing package.
func saidByTest(line string) bool {
	words := strings.TrimSpace(line)
	return words != "" && !strings.HasPrefix(words, "=== ") && !strings.HasPrefix(words, "--- ")
}

// endedItself reports whether a package may have failed outside its tests: it printed something
// unforgivable there, something after the last test (as a failing TestMain does), or anything
// except the testing package's last lines.
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

// only returns the plan that runs only t, several times.
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

// rerunFailing runs the failing tests again, and reports whether they only failed because of the
// load.
func (s *summary) rerunFailing(p plan, run func(plan, *summary) error) bool {
	all := s.failingTests(p)
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
			s.passed[t] = true // all parts of this test have passed
		}
	}
	s.failing = nil
	return true
}
