package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestAgain runs modules with failing tests. A few tests that pass when run alone must count as
// unsteady. Any other failure must fail the run.
func TestAgain(t *testing.T) {
	const head = "import (\"os\"; \"testing\")\nfunc TestGood(t *testing.T) {}\n"
	const flaky = "if os.Getenv(\"FIRST\") != \"\" { t.Error(\"late\") }"
	tooMany := ""
	for i := range fewFailing + 1 {
		tooMany += fmt.Sprintf("func Test%d(t *testing.T) {%s}\n", i, flaky)
	}
	for name, c := range map[string]struct {
		tests string
		want  []string
	}{
		"one part": {
			"func TestParts(t *testing.T) { t.Run(\"a b\", func(t *testing.T) {" + flaky + "}); t.Run(\"c\", func(t *testing.T) {}) }",
			[]string{
				"again, alone: x.TestParts/a_b\n", "--- unsteady: x.TestParts/a_b failed beside other tests, and passed 2 times alone", "late\n",
				"\nPASS: 3 passed, 0 failed, 0 skipped, in 1 packages; 1 unsteady\n",
			},
		},
		"that fails always": {
			"func TestBad(t *testing.T) { t.Error(\"bad\") }\nfunc TestOther(t *testing.T) {" + flaky + "}",
			[]string{"again, alone: x.TestBad\n", "--- failed: x.TestBad\n", "--- failed: x.TestOther\n", "\nFAIL: 1 passed, 2 failed, 0 skipped, in 1 packages\n"},
		},
		"that is skipped alone": {
			"func TestSkip(t *testing.T) {" + flaky + "; t.Skip(\"never\") }",
			[]string{"--- failed: x.TestSkip\n", "\nFAIL: 1 passed, 1 failed"},
		},
		"too many": {
			tooMany,
			[]string{fmt.Sprintf("\nFAIL: 1 passed, %d failed", fewFailing+1)},
		},
		"a panic": {
			"func TestPanic(t *testing.T) { if os.Getenv(\"FIRST\") != \"\" { panic(\"broken\") } }",
			[]string{"\nFAIL: 1 passed, 1 failed"},
		},
		"the end of the process": {
			"func TestEnd(t *testing.T) {" + flaky + "}\nfunc TestLater(t *testing.T) { if os.Getenv(\"FIRST\") != \"\" { os.Exit(7) } }",
			[]string{"\nFAIL: 1 passed, "},
		},
		"a panic after all tests": {
			"func TestA(t *testing.T) {" + flaky + "}\nfunc TestMain(m *testing.M) { m.Run(); if os.Getenv(\"FIRST\") != \"\" { panic(\"broken\") } }",
			[]string{"\nFAIL: 1 passed, 1 failed"},
		},
		"a complaint after all tests": {
			"func TestA(t *testing.T) {" + flaky + "}\nfunc TestMain(m *testing.M) { m.Run(); if os.Getenv(\"FIRST\") != \"\" { println(\"leaks\"); os.Exit(1) } }",
			[]string{"\nFAIL: 1 passed, 1 failed"},
		},
		"a test that fails beside its part": {
			"func TestSum(t *testing.T) { n := 0; for _, s := range []string{\"a\", \"b\"} { t.Run(s, func(t *testing.T) { n++; if s == \"a\" {" + flaky + "} }) }\n" +
				"if n == 2 { t.Error(\"always\") } }",
			[]string{"again, alone: x.TestSum\n", "\nFAIL: 2 passed, 2 failed"},
		},
		"no compiler likes": {"func TestX(t *testing.T) { undefined() }", []string{"\nFAIL: 0 passed, 1 failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(module(t, map[string]string{"x/x_test.go": "package x\n" + head + c.tests + "\n"}))
			t.Setenv("FIRST", "yes")
			var out strings.Builder
			s := newSummary(&out)
			p := plan{packages: []string{"./x"}, here: true}
			readErr, waitErr := runAll(p, s)
			os.Unsetenv("FIRST")
			if readErr != nil || waitErr == nil {
				t.Fatalf("read of the first run = %v, want nil; its end = %v, want an error", readErr, waitErr)
			}
			if s.rerunFailing(p, func(only plan, alone *summary) error { return errors.Join(runAll(only, alone)) }) {
				waitErr = nil
			}
			s.print(waitErr)
			has(t, out.String(), c.want...)
		})
	}
}
