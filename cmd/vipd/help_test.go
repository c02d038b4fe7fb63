package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestHelp runs vipd --help. It must show each flag with two dashes, like every other program in
// the project.
func TestHelp(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &out, &errs); code != exitDone || errs.Len() > 0 {
		t.Fatalf("exit code = %d, want 0; stderr = %s", code, &errs)
	}
	for _, line := range []string{
		"\n  --config FILE        read the configuration from FILE (default /etc/vipd/vipd.toml)\n", "\n  --log-level LEVEL    log messages of LEVEL and above: ", "\n  --version            print the version and exit\n",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("help =\n%swant a text that contains %q", &out, line)
		}
	}
}
