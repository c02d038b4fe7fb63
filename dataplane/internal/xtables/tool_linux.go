package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-iptables/iptables"

	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// waitSeconds is how long a program waits for the lock on the tables.
const waitSeconds = 5

// Tool is an iptables variant for one family. Its methods are safe for concurrent use. Each method
// runs the program in the calling thread's network namespace.
type Tool struct {
	family  inet.Family
	variant Variant
	why     string
	program string // such as iptables-nft, to which -restore and -save are appended
	run     command
	// reader returns a reader for rules, which it creates on the first call.
	reader func() (*iptables.IPTables, error)
	// commits counts the successful transactions.
	commits atomic.Uint32
}

// command runs a program with input, and returns its output. err is an *exec.ExitError if the
// program ran.
type command func(ctx context.Context, input, program string, args ...string) (stdout, stderr string, err error)

// Family returns the family of the tool's rules.
func (t *Tool) Family() inet.Family { return t.family }

// Variant returns NFT or Legacy.
func (t *Tool) Variant() Variant { return t.variant }

// Why returns a short reason why the variant was chosen, such as "configured".
func (t *Tool) Why() string { return t.why }

// Restore passes input to iptables-restore. It does not change anything that input does not name.
// Each COMMIT is a transaction. An error is an [OpError] that quotes the refused line. Earlier
// transactions remain in effect.
func (t *Tool) Restore(ctx context.Context, input string) error {
	_, err := t.restore(ctx, input)
	return err
}

// restore implements Restore. It returns the program's output, even if the program fails later.
func (t *Tool) restore(ctx context.Context, input string) (stdout string, err error) {
	op := t.program + "-restore"
	dataplane.Wrote(ctx, len(input))
	stdout, stderr, err := t.run(ctx, input, op, "--noflush", "--wait", fmt.Sprint(waitSeconds))
	if err != nil {
		return stdout, failure(op, input, stderr, err)
	}
	t.commits.Add(uint32(strings.Count(input, "\nCOMMIT\n")))
	return stdout, nil
}

// Commits returns the number of this Tool's transactions. It excludes the transactions of a failed
// restore.
func (t *Tool) Commits() uint32 { return t.commits.Load() }

// outputWait is how long to keep reading a program's output after the program has exited. It is
// long because this process may have to wait for a CPU.
const outputWait = 10 * time.Second

// execute is the default command. When ctx is done, it kills the program. The program's transaction
// has then taken effect either completely or not at all.
func execute(ctx context.Context, input, program string, args ...string) (string, string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = outputWait
	err := cmd.Run()
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return stdout.String(), stderr.String(), err
}
