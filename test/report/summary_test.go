package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// TestSummary runs go test on a small module with one test for each outcome. The report must show
// each outcome.
func TestSummary(t *testing.T) {
	folder := module(t, map[string]string{
		"good/good_test.go": "package good\nimport \"testing\"\nfunc TestGood(t *testing.T) { t.Log(\"quiet\") }\n",
		"skip/skip_test.go": "package skip\nimport \"testing\"\nfunc TestSkip(t *testing.T) { t.Log(\"before\"); t.Cleanup(func() { println(\"after\") }); t.Skip(\"needs root: tables\") }\n" +
			"func TestLong(t *testing.T) { t.Skip(\"make soak runs it: as others do\") }\nfunc TestLonger(t *testing.T) { t.Skip(\"make soak runs it here\") }\n",
		"bad/bad_test.go":     "package bad\nimport \"testing\"\nfunc TestBad(t *testing.T) { t.Run(\"case\", func(t *testing.T) { t.Error(\"got 1, want 2\") }) }\n",
		"main/main_test.go":   "package main\nimport (\"os\"; \"testing\")\nfunc TestMain(m *testing.M) { println(\"no luck\"); os.Exit(3) }\n",
		"syntax/syn_test.go":  "package syntax\nimport \"testing\"\nfunc TestX(t *testing.T) { undefined() }\n",
		"none/none.go":        "package none\n",
		"panics/pan_test.go":  "package panics\nimport \"testing\"\nfunc TestPanic(t *testing.T) { panic(\"broken invariant\") }\n",
		"good/second_test.go": "package good\nimport \"testing\"\nfunc TestToo(t *testing.T) {}\n",
	})
	cmd := exec.Command("go", "test", "-json", "./...")
	cmd.Dir = folder
	events, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var out strings.Builder
	s := newSummary(&out)
	if err := s.read(strings.NewReader(string(events)), ""); err != nil {
		t.Fatal(err)
	}
	s.print(err)
	got := out.String()
	has(t, got,
		"ok    vipd/good",
		"FAIL  vipd/bad",
		"--- failed: bad.TestBad/case\n",
		"got 1, want 2",
		"--- failed: main\n",
		"--- failed: panics.TestPanic\n",
		"panic: broken invariant",
		"undefined: undefined",
		"skipped:\n  skip.TestSkip: needs root: tables\n  skip: make soak runs 2 more\n",
		"\nfailed:\n", "  bad.TestBad/case: bad_test.go:3: got 1, want 2\n", "  panics.TestPanic: panic: broken invariant",
		"\nFAIL: 2 passed, 5 failed, 3 skipped, in 6 packages\n",
	)
	for _, unwanted := range []string{"quiet", "none"} {
		if strings.Contains(got, unwanted) {
			t.Errorf("report contains %q, want it omitted", unwanted)
		}
	}
}
