package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/test/guest/vm"
)

func TestParse(t *testing.T) {
	var printed strings.Builder
	o, command, err := parse([]string{"-c", "1", "-m", "512", "-t", "90s", "-w", "/tmp/x", "--", "ls", "-l"}, &printed)
	want := vm.Options{CPUs: 1, Memory: 512, Limit: 90 * time.Second, Writable: "/tmp/x"}
	if err != nil || o.CPUs != want.CPUs || o.Memory != want.Memory || o.Limit != want.Limit || o.Writable != want.Writable {
		t.Errorf("options = %+v, %v, want %+v", o, err, want)
	}
	if !slices.Equal(command, []string{"ls", "-l"}) || printed.Len() > 0 {
		t.Errorf("command = %q, output = %q, want the command and no output", command, printed.String())
	}
	if _, command, err := parse([]string{"ls", "-t", "x"}, &printed); err != nil || !slices.Equal(command, []string{"ls", "-t", "x"}) {
		t.Errorf("command = %q, error = %v, want the command's own flags", command, err)
	}
}

func TestWrongUse(t *testing.T) {
	for line, want := range map[string]string{
		"":             "which command?",
		"-t 0s ls":     "-t: no time",
		"-t 5 ls":      "-t",
		"-c 0 ls":      "-c: a guest has",
		"-m 10 ls":     "-m: less than",
		"-x ls":        "-x",
		"-w":           "-w",
		"-m many -- x": "-m",
	} {
		var out, complaints strings.Builder
		if status := run(t.Context(), strings.Fields(line), &out, &complaints); status != 2 {
			t.Errorf("guest %s: status = %d, want 2", line, status)
		}
		if !strings.Contains(complaints.String(), want) || !strings.Contains(complaints.String(), "usage: guest") || out.Len() > 0 {
			t.Errorf("guest %s: stdout = %q, stderr = %q, want %q and the usage", line, out.String(), complaints.String(), want)
		}
	}
	var complaints strings.Builder
	if status := run(t.Context(), []string{"-h"}, nil, &complaints); status != 0 || !strings.Contains(complaints.String(), "FOLDER") {
		t.Errorf("guest -h: status = %d, stderr = %q, want 0 and the usage", status, complaints.String())
	}
}
