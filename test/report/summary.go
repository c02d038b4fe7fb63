package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// event is a line of go test -json; see go doc test2json.
type event struct {
	Action     string
	Package    string
	ImportPath string // the package of build output
	Test       string
	Output     string
	Elapsed    float64
}

// test identifies a test by its package, its name and where it ran. where is "" for tests that ran
// outside the guest. The name is "" for the package as a whole.
type test struct{ pkg, name, where string }

// summary collects the results of a test run. Events come from here and from the guest at the same
// time.
type summary struct {
	mu  sync.Mutex
	out io.Writer
	// output is the output of each test that has not passed yet.
	output  map[test][]string
	skipped []test
	failing []test
	// unsteady are the tests that failed under load, and passed alone.
	unsteady []test
	// builds has the compiler's output, by package.
	builds map[string][]string
	// begun has the tests and packages that are still running.
	begun map[test]bool
	// passed has the passed tests, and packages has the finished packages.
	passed   map[test]bool
	packages map[test]bool
	// pieces is the number of unfinished pieces of a package. took has the duration of each package
	// with finished pieces, and of each top-level test.
	pieces map[test]int
	took   map[test]float64
}

func newSummary(out io.Writer) *summary {
	return &summary{
		out: out, output: map[test][]string{}, builds: map[string][]string{}, begun: map[test]bool{},
		passed: map[test]bool{}, packages: map[test]bool{}, pieces: map[test]int{}, took: map[test]float64{},
	}
}

// expect records the pieces of each package. A package is finished when its last piece is.
func (s *summary) expect(pieces []piece, where string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range pieces {
		s.pieces[test{p.Path, "", where}]++
	}
}

// read reads all events from here or from the guest, and prints a line for each package as it ends.
func (s *summary) read(events io.Reader, where string) error {
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			s.mu.Lock()
			_, _ = fmt.Fprintln(s.out, lines.Text()) // a message of the go command
			s.mu.Unlock()
			continue
		}
		s.add(e, where)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading what go test prints: %w", err)
	}
	return nil
}

func (s *summary) add(e event, where string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := test{e.Package, e.Test, where}
	switch e.Action {
	case "build-output":
		s.builds[e.ImportPath] = append(s.builds[e.ImportPath], e.Output)
	case "start", "run":
		s.begun[t] = true
	case "output":
		s.output[t] = append(s.output[t], e.Output)
	case "pass", "skip", "fail":
		delete(s.begun, t)
		if e.Test == "" {
			s.endPackage(t, e)
		} else {
			s.endTest(t, e.Action)
			if !strings.Contains(e.Test, "/") {
				s.took[t] += e.Elapsed
			}
		}
	}
}

// endTest records a test's result. A test whose subtests run separately has several results.
func (s *summary) endTest(t test, action string) {
	failed := slices.Contains(s.failing, t)
	switch {
	case action == "skip":
		s.skipped = append(s.skipped, t)
	case action == "fail" && !failed:
		delete(s.passed, t)
		s.failing = append(s.failing, t)
	case action == "pass" && !failed:
		s.passed[t] = true
		delete(s.output, t)
	}
}

func (s *summary) endPackage(t test, e event) {
	if e.Action == "skip" || s.packages[t] {
		return // the package has no tests, or its line was already printed
	}
	bad := slices.ContainsFunc(s.failing, func(f test) bool { return f.pkg == t.pkg && f.where == t.where })
	if e.Action == "fail" && !bad { // the package does not build, its TestMain fails, or a data race ends it
		s.failing = append(s.failing, t)
		bad = true
	}
	s.took[t] += e.Elapsed
	s.pieces[t]--
	if s.pieces[t] > 0 {
		return
	}
	s.packages[t] = true
	word := "ok  "
	if bad {
		word = "FAIL"
	}
	_, _ = fmt.Fprintln(s.out, strings.TrimSpace(fmt.Sprintf("%s  %-40s %6.1fs  %s", word, e.Package, s.took[t], t.where)))
}

// broke records a failure outside the tests.
func (s *summary) broke(what, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := test{what, "", where}
	s.failing = append(s.failing, t)
	s.output[t] = append(s.output[t], strings.TrimSuffix(why, "\n")+"\n")
}

// ended reports whether a package has passed or failed.
func (s *summary) ended(path, where string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.packages[test{path, "", where}]
}

// failed returns the number of failed tests, and of failed packages without a failing test.
func (s *summary) failed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.failing)
}

// print writes the failures, the skips and the last line. err is go test's error.
func (s *summary) print(err error) {
	for _, t := range s.failing {
		_, _ = fmt.Fprintf(s.out, "\n--- failed: %s\n%s", t, strings.Join(s.output[t], ""))
	}
	for _, t := range s.unsteady {
		_, _ = fmt.Fprintf(s.out, "\n--- unsteady: %s failed beside other tests, and passed %d times alone: a defect to mend\n%s", t, timesAgain, strings.Join(s.output[t], ""))
	}
	for pkg, output := range s.builds {
		_, _ = fmt.Fprintf(s.out, "\n--- building %s\n%s", pkg, strings.Join(output, ""))
	}
	if len(s.skipped) > 0 {
		_, _ = fmt.Fprintln(s.out, "\nskipped:")
	}
	left := map[test]int{} // the number of tests for make soak, by package
	for _, t := range s.skipped {
		if why := reason(s.output[t]); strings.HasPrefix(why, "make soak runs it") {
			left[test{t.pkg, "", t.where}]++
		} else {
			_, _ = fmt.Fprintf(s.out, "  %s: %s\n", t, why)
		}
	}
	for _, t := range slices.SortedFunc(maps.Keys(left), func(a, b test) int { return cmp.Compare(a.String(), b.String()) }) {
		_, _ = fmt.Fprintf(s.out, "  %s: make soak runs %d more\n", t, left[t])
	}
	s.printSlowest()
	s.printFailed()
	word := "PASS"
	if err != nil || s.failed() > 0 {
		word = "FAIL"
	}
	_, _ = fmt.Fprintf(s.out, "\n%s: %s\n", word, s.count(func(test) bool { return true }))
	inGuest := func(t test) bool { return t.where == where }
	if s.ran(inGuest) {
		_, _ = fmt.Fprintf(s.out, "of these %s: %s\n", where, s.count(inGuest))
	}
}

// slowest is the number of slowest tests that the report names.
const slowest = 10

// printSlowest names the slowest tests, which are the first candidates if the run is too slow.
func (s *summary) printSlowest() {
	tests := slices.SortedFunc(maps.Keys(s.took), func(a, b test) int { return cmp.Compare(s.took[b], s.took[a]) })
	tests = filter(tests, func(t test) bool { return t.name != "" && s.took[t] > 0 })
	if len(tests) > 0 {
		_, _ = fmt.Fprintln(s.out, "\nslowest:")
	}
	for _, t := range tests[:min(slowest, len(tests))] {
		_, _ = fmt.Fprintf(s.out, "  %6.1fs  %s\n", s.took[t], t)
	}
}

// printFailed repeats the failed tests and their first messages near the end, where a reader looks
// first.
func (s *summary) printFailed() {
	if len(s.failing) > 0 {
		_, _ = fmt.Fprintln(s.out, "\nfailed:")
	}
	for _, t := range s.failing {
		_, _ = fmt.Fprintf(s.out, "  %s: %s\n", t, message(s.output[t]))
	}
}

// count returns the counts of the tests that wanted selects.
func (s *summary) count(wanted func(test) bool) string {
	passed := len(filter(slices.Collect(maps.Keys(s.passed)), wanted))
	packages := map[string]bool{}
	for t := range s.packages {
		if wanted(t) {
			packages[t.pkg] = true
		}
	}
	words := fmt.Sprintf("%d passed, %d failed, %d skipped, in %d packages",
		passed, len(filter(s.failing, wanted)), len(filter(s.skipped, wanted)), len(packages))
	if n := len(filter(s.unsteady, wanted)); n > 0 {
		words += fmt.Sprintf("; %d unsteady", n)
	}
	return words
}

// ran reports whether any test that wanted selects has passed or failed.
func (s *summary) ran(wanted func(test) bool) bool {
	return len(filter(s.failing, wanted))+len(filter(slices.Collect(maps.Keys(s.passed)), wanted)) > 0
}

func filter(tests []test, wanted func(test) bool) []test {
	return slices.DeleteFunc(slices.Clone(tests), func(t test) bool { return !wanted(t) })
}

// String returns a name such as dataplane/userspace.TestX, or only the package. For tests in the
// guest, it adds where they ran.
func (t test) String() string {
	words := strings.TrimPrefix(t.pkg, "vipd/")
	if t.name != "" {
		words += "." + t.name
	}
	if t.where != "" {
		words += " (" + t.where + ")"
	}
	return words
}

// location matches the testing package's prefix of a message: "FILE.go:LINE: ".
var location = regexp.MustCompile(`^\s+[\w-]+\.go:\d+: `)

// message returns the first line that a test reported, with its location, or the first line of a
// panic.
func message(output []string) string {
	for _, line := range output {
		if location.MatchString(line) || strings.HasPrefix(line, "panic: ") {
			return strings.TrimSpace(line)
		}
	}
	return "no message"
}

// reason returns the text of t.Skip: the last message in a test's output, without its location.
func reason(output []string) string {
	last := ""
	for _, line := range slices.Backward(output) {
		if at := location.FindString(line); at != "" {
			return strings.TrimSpace(strings.TrimPrefix(line, at))
		}
		if line = strings.TrimSpace(line); last == "" && line != "" && !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "===") {
			last = line
		}
	}
	return cmp.Or(last, "no reason given")
}
