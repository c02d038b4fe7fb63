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

// waitSeconds is how long a program waits for others that hold the lock of the tables.
const waitSeconds = 5

// Tool is one family's iptables with one variant. Its methods may be called by several goroutines; each runs the
// program in the network namespace of its caller's thread.
type Tool struct {
	family  inet.Family
	variant Variant
	why     string
	program string // such as iptables-nft; -restore and -save are appended
	run     command
	// reader makes the reader of rules when it is first asked for.
	reader func() (*iptables.IPTables, error)
	// commits counts the transactions that were done.
	commits atomic.Uint32
}

// command runs a program with input, and returns what it wrote. err is an *exec.ExitError where the program ran.
type command func(ctx context.Context, input, program string, args ...string) (stdout, stderr string, err error)

// Family returns the family that the tool writes rules of.
func (t *Tool) Family() inet.Family { return t.family }

// Variant returns NFT or Legacy.
func (t *Tool) Variant() Variant { return t.variant }

// Why says in some words why it is this variant, such as "configured".
func (t *Tool) Why() string { return t.why }

// Restore runs input, in the syntax of iptables-restore, and leaves alone what input does not name. Each COMMIT
// is one transaction: an error, an *OpError that quotes the line refused, leaves the blocks before it done.
func (t *Tool) Restore(ctx context.Context, input string) error {
	_, err := t.restore(ctx, input)
	return err
}

// restore is Restore, and returns what the program wrote, which is what input asked for, also where it has failed later.
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

// Commits returns how many transactions this Tool has made. Those of a restore that failed are not counted.
func (t *Tool) Commits() uint32 { return t.commits.Load() }

// outputWait is how long after a program's end what it has written may take to be read: by this process, which may have to wait for a
// processor.
const outputWait = 10 * time.Second

// execute is the command that starts programs. When ctx ends the program is killed; its transaction is done or it is
// not.
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
