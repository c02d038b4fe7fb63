package xtables

import (
	"errors"
	"testing"
)

// TestRefusedLine parses the error output of iptables 1.8.9 for refused inputs. It must find the
// line number in each format.
func TestRefusedLine(t *testing.T) {
	exit := errors.New("exit status 1")
	for _, c := range []struct {
		name, input, stderr string
		line                int
		quoted, text        string
	}{
		{
			"legacy at the commit", "*filter\n:INPUT - [0:0]\n-X NOPE\nCOMMIT\n", "iptables-restore: line 3 failed\n",
			3, "-X NOPE", "iptables-restore: line 3 failed",
		},
		{
			"nft at the commit", "*filter\n-F A\n-X A\nCOMMIT\n",
			"iptables-nft-restore v1.8.9 (nf_tables): \nline 3: CHAIN_DEL failed (Device or resource busy): chain A\n",
			3, "-X A", "iptables-nft-restore v1.8.9 (nf_tables): line 3: CHAIN_DEL failed (Device or resource busy): chain A",
		},
		{
			"while reading", "*filter\n-A B --bogus\nCOMMIT\n",
			"iptables-restore v1.8.9 (legacy): unknown option \"--bogus\"\nError occurred at line: 2\nTry `iptables-restore -h' or 'iptables-restore --help' for more information.\n",
			2, "-A B --bogus", "iptables-restore v1.8.9 (legacy): unknown option \"--bogus\"",
		},
		{
			"nft counts one too far for a missing target", "*filter\n:B - [0:0]\n-A B -j NOPE\nCOMMIT\n",
			"iptables-nft-restore v1.8.9 (nf_tables): Chain 'NOPE' does not exist\nError occurred at line: 4\nTry `iptables-nft-restore -h' or 'iptables-nft-restore --help' for more information.\n",
			3, "-A B -j NOPE", "iptables-nft-restore v1.8.9 (nf_tables): Chain 'NOPE' does not exist",
		},
		{
			"nft misses a target only at the commit", "*nat\n:A - [0:0]\n-A A -j B\n:B - [0:0]\n-A B -j A2\nCOMMIT\n",
			"iptables-nft-restore v1.8.9 (nf_tables): Chain 'B' does not exist\nError occurred at line: 6\n",
			3, "-A A -j B", "iptables-nft-restore v1.8.9 (nf_tables): Chain 'B' does not exist",
		},
		{"no commit", "*filter\n-A A -j DROP\n", "iptables-restore: COMMIT expected at line 3\n", 3, "", "iptables-restore: COMMIT expected at line 3"},
		{"no line", "*filter\nCOMMIT\n", "Fatal: can't open lock file /run/xtables.lock: Permission denied\n", 0, "", "Fatal: can't open lock file /run/xtables.lock: Permission denied"},
		{"a line that is not in the input", "*filter\nCOMMIT\n", "line 99 failed\n", 0, "", "line 99 failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := failure("iptables-restore", c.input, c.stderr, exit)
			if got.Line != c.line || got.Input != c.quoted || got.Text != c.text || !errors.Is(got, exit) {
				t.Fatalf("line = %d %q, text = %q; want %d %q, text %q", got.Line, got.Input, got.Text, c.line, c.quoted, c.text)
			}
		})
	}
}
