package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func module(t *testing.T, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	files["go.mod"] = "module vipd\n\ngo 1.26\n"
	for name, text := range files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// TestInside builds a module's tests as for the guest, and executes the orders here. The
// report must show the outcome of each test.
func TestInside(t *testing.T) {
	folder := module(t, map[string]string{
		"good/good_test.go": "package good\nimport (\"os\"; \"testing\")\n" +
			"func TestIPVSGood(t *testing.T) { if _, err := os.Stat(\"good_test.go\"); err != nil { t.Error(err) } }\n" +
			"func TestOther(t *testing.T) { t.Error(\"not asked for\") }\n",
		"bad/bad_test.go":   "package bad\nimport \"testing\"\nfunc TestIPVSBad(t *testing.T) { t.Error(\"got 1, want 2\") }\n",
		"hang/hang_test.go": "package hang\nimport (\"testing\"; \"time\")\nfunc TestIPVSHang(t *testing.T) { time.Sleep(time.Hour) }\n",
		"skip/skip_test.go": "package skip\nimport \"testing\"\nfunc TestIPVSSkip(t *testing.T) { t.Skip(\"needs ipvsadm: apt-get install ipvsadm\") }\n",
		"none/none_test.go": "package none\nimport \"testing\"\nfunc TestOther(t *testing.T) {}\n// func TestIPVS is meant for others\n",
	})
	t.Chdir(folder)
	all, err := list([]string{"./..."})
	if err != nil {
		t.Fatal(err)
	}
	needing, err := needingIPVS(all)
	if err != nil || strings.Join(paths(needing), " ") != "vipd/bad vipd/good vipd/hang vipd/skip" {
		t.Fatalf("packages that need IPVS = %q, %v; want the packages bad, good, hang and skip", paths(needing), err)
	}
	o, err := build(t.Context(), plan{guest: needing}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var events, out strings.Builder
	for o.Limit = 2 * time.Second; o.Limit < time.Minute; o.Limit *= 4 { // until a busy machine has time for all but the test that hangs
		events.Reset()
		if status := inside(saved(t, o), &events); status != 1 {
			t.Errorf("status = %d, want 1", status)
		}
		if strings.Count(events.String(), "panic: test timed out") < 2 {
			break
		}
	}
	s := newSummary(&out)
	s.expect(o.Pieces, where)
	if err := s.read(strings.NewReader(events.String()), where); err != nil {
		t.Fatal(err)
	}
	for _, k := range needing {
		if !s.ended(k.path, where) || s.ended(k.path, "") {
			t.Errorf("%s: ended in the guest = %t, ended here = %t; want true and false", k.path, s.ended(k.path, where), s.ended(k.path, ""))
		}
	}
	s.add(event{Action: "pass", Package: "vipd/good", Test: "TestOther"}, "")
	s.add(event{Action: "pass", Package: "vipd/good"}, "")
	s.broke("all", "and one more")
	s.print(nil)
	has(t, out.String(), "ok    vipd/good", "in the guest\n", "FAIL  vipd/bad",
		"--- failed: bad.TestIPVSBad (in the guest)\n", "got 1, want 2", "--- failed: hang.TestIPVSHang (in the guest)\n",
		"panic: test timed out", "--- failed: all (in the guest)\nand one more\n",
		"  skip.TestIPVSSkip (in the guest): needs ipvsadm: apt-get install ipvsadm\n",
		"\nFAIL: 2 passed, 3 failed, 1 skipped, in 4 packages\nof these in the guest: 1 passed, 3 failed, 1 skipped, in 4 packages\n")
}

func saved(t *testing.T, o orders) string {
	t.Helper()
	file, err := o.save(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestPieces splits a package into pieces that run in parallel. Each of its tests must run once, a
// test with separate subtests must count as one, and the package must end with its last piece.
func TestPieces(t *testing.T) {
	folder := module(t, map[string]string{
		"x/x_test.go": "package x\nimport \"testing\"\nfunc TestIPVSLong(t *testing.T) {\n" +
			"t.Run(\"a\", func(t *testing.T) {})\nt.Run(\"b\", func(t *testing.T) { t.Error(\"no\") })\nt.Run(\"c\", func(t *testing.T) {})\n}\n" +
			"func TestIPVSShort(t *testing.T) {}\n",
	})
	t.Chdir(folder)
	o, err := build(t.Context(), plan{guest: []pkg{{path: "vipd/x", folder: filepath.Join(folder, "x")}}}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o.Pieces = cut([]string{"vipd/x"}, ipvsTests, []piece{
		{Path: "vipd/x", Run: "^TestIPVSLong$/^(a|c)$"}, {Path: "vipd/y", Run: "^TestOther$"}, {Path: "vipd/x", Run: "^TestIPVSLong$"},
	})
	if len(o.Pieces) != 3 {
		t.Fatalf("pieces = %q, want two pieces and the remaining tests", o.Pieces)
	}
	var events strings.Builder
	if status := inside(saved(t, o), &events); status != 1 {
		t.Errorf("status = %d, want 1", status)
	}
	for _, name := range []string{"TestIPVSLong/a", "TestIPVSLong/b", "TestIPVSLong/c", "TestIPVSShort"} {
		if n := strings.Count(events.String(), `"Action":"run","Package":"vipd/x","Test":"`+name+`"`); n != 1 {
			t.Errorf("runs of %s = %d, want 1", name, n)
		}
	}
	var out strings.Builder
	s := newSummary(&out)
	s.expect(o.Pieces, where)
	if err := s.read(strings.NewReader(events.String()), where); err != nil {
		t.Fatal(err)
	}
	s.print(nil)
	has(t, out.String(), "FAIL  vipd/x", "--- failed: x.TestIPVSLong/b (in the guest)\n", "--- failed: x.TestIPVSLong (in the guest)\n",
		"\nFAIL: 3 passed, 2 failed, 0 skipped, in 1 packages\n")
	if n := strings.Count(out.String(), "vipd/x"); n != 1 {
		t.Errorf("lines of the package in the report = %d, want 1:\n%s", n, out.String())
	}
}

// has fails the test unless the report contains each text in all. The failure shows the whole
// report.
func has(t *testing.T, report string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(report)
	}
}

// TestWrongOrders passes a missing file of orders to inside, which must fail.
func TestWrongOrders(t *testing.T) {
	if status := inside(filepath.Join(t.TempDir(), "missing"), os.Stdout); status != 1 {
		t.Errorf("without orders: status = %d, want 1", status)
	}
}

// TestWhatDoesNotBuildIsNotRun runs a package that does not build. The error must contain the
// compiler's message.
func TestWhatDoesNotBuildIsNotRun(t *testing.T) {
	t.Chdir(module(t, map[string]string{"x/x_test.go": "package x\nimport \"testing\"\nfunc TestIPVSX(t *testing.T) { undefined() }\n"}))
	_, err := build(t.Context(), plan{guest: []pkg{{path: "vipd/x"}}}, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("build of invalid code = %v, want an error about an undefined name", err)
	}
}
