package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// event is a line of go test -json; go doc test2json says what each means.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Output     string
	Elapsed    float64
}

// test names one test of one package; the name is "" for the package as a whole.
type test struct{ pkg, name string }

// summary is what is known of a run of the tests.
type summary struct {
	out io.Writer
	// output is what each test that has not passed yet has printed.
	output  map[test][]string
	skipped []test
	failing []test
	// builds is what the compiler printed, by package.
	builds         map[string][]string
	passed, broken int
	packages       int
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, output: map[test][]string{}, builds: map[string][]string{}}
}

// read takes all events, and prints a line for each package as it ends.
func (s *summary) read(events io.Reader) error {
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			_, _ = fmt.Fprintln(s.out, lines.Text()) // go itself has something to say
			continue
		}
		s.take(e)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading what go test prints: %w", err)
	}
	return nil
}

func (s *summary) take(e event) {
	t := test{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		s.builds[e.ImportPath] = append(s.builds[e.ImportPath], e.Output)
	case "output":
		s.output[t] = append(s.output[t], e.Output)
	case "pass", "skip", "fail":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(t, e.Action)
		}
	}
}

func (s *summary) endTest(t test, action string) {
	switch action {
	case "pass":
		s.passed++
		delete(s.output, t)
	case "skip":
		s.skipped = append(s.skipped, t)
	case "fail":
		s.failing = append(s.failing, t)
	}
}

func (s *summary) endPackage(e event) {
	if e.Action == "skip" {
		return // it has no tests
	}
	s.packages++
	word := "ok  "
	if e.Action == "fail" {
		word = "FAIL"
		// A package may fail without a failing test: it does not build, its TestMain fails, a race ends it.
		if !slices.ContainsFunc(s.failing, func(t test) bool { return t.pkg == e.Package }) {
			s.broken++
			s.failing = append(s.failing, test{e.Package, ""})
		}
	}
	_, _ = fmt.Fprintf(s.out, "%s  %-40s %6.1fs\n", word, e.Package, e.Elapsed)
}

// failed counts the tests, and the packages without a failing test, that failed.
func (s *summary) failed() int { return len(s.failing) }

// print writes the failures, the skips and the last line. err is how go test itself ended.
func (s *summary) print(err error) {
	for _, t := range s.failing {
		_, _ = fmt.Fprintf(s.out, "\n--- failed: %s\n%s", t, strings.Join(s.output[t], ""))
	}
	for pkg, output := range s.builds {
		_, _ = fmt.Fprintf(s.out, "\n--- building %s\n%s", pkg, strings.Join(output, ""))
	}
	if len(s.skipped) > 0 {
		_, _ = fmt.Fprintln(s.out, "\nskipped:")
	}
	for _, t := range s.skipped {
		_, _ = fmt.Fprintf(s.out, "  %s: %s\n", t, reason(s.output[t]))
	}
	word := "PASS"
	if err != nil || s.failed() > 0 {
		word = "FAIL"
	}
	_, _ = fmt.Fprintf(s.out, "\n%s: %d passed, %d failed, %d skipped, in %d packages\n",
		word, s.passed, s.failed(), len(s.skipped), s.packages)
}

// String writes dataplane/userspace.TestX, or the package alone.
func (t test) String() string {
	pkg := strings.TrimPrefix(t.pkg, "vipd/")
	if t.name == "" {
		return pkg
	}
	return pkg + "." + t.name
}

// reason finds the text of t.Skip in a test's output: the line after FILE.go:LINE, without that.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "---") || strings.HasPrefix(line, "===") || line == "" {
			continue
		}
		if _, text, ok := strings.Cut(line, ": "); ok && strings.Contains(line, ".go:") {
			return text
		}
		return line
	}
	return "no reason given"
}
