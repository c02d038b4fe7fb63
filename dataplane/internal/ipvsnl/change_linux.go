package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"vipd/dataplane"
	"vipd/dataplane/internal/nlsock"
)

// batchSize is the maximum number of changes in a system call. It is large enough to make system
// calls cheap, and small enough that other programs do not wait long for IPVS's lock.
const batchSize = 128

// Do implements Conn.
func (k *Client) Do(ctx context.Context, ops []Op) []error {
	errs := make([]error, len(ops))
	possible := make([]int, 0, len(ops))
	for i := range ops {
		if errs[i] = ops[i].Invalid(); errs[i] == nil {
			k.marks.note(ops[i].Service.Key)
			possible = append(possible, i)
		}
	}
	failed := len(possible) < len(ops)
	var stopped error
	for part := range slices.Chunk(possible, batchSize) {
		var refusals []error
		err := stopped
		if err == nil {
			refusals, err = k.change(ctx, ops, part)
			if err != nil && refusals == nil {
				stopped = fmt.Errorf("not tried, because an earlier change failed: %w", err)
			}
		}
		for j, i := range part {
			switch {
			case refusals != nil && refusals[j] != nil:
				errs[i] = ops[i].Refused(refusals[j])
			case err != nil:
				errs[i] = fmt.Errorf("%s: %w", ops[i], err)
			}
			failed = failed || errs[i] != nil
		}
	}
	if !failed {
		return nil
	}
	return errs
}

// change sends the ops whose indices are in part. It returns the kernel's refusal or nil for each
// of these ops. If it also returns an error, a nil refusal means that the op's result is unknown.
func (k *Client) change(ctx context.Context, ops []Op, part []int) ([]error, error) {
	refusals, err := ask(ctx, k, func(s *socket) {
		for _, i := range part {
			s.op(&ops[i])
		}
		s.Ask() // for all other messages, the kernel reports only refusals
		dataplane.Wrote(ctx, len(s.B))
	}, func(s *socket) ([]error, error) { return s.refusals(len(part)) })
	if err == nil && slices.Contains(refusals, error(syscall.ENOENT)) {
		if err := k.unloaded(); err != nil {
			return nil, err
		}
	}
	return refusals, err
}

// refusals reads the answers to the last n messages (see [nlsock.Socket.Refusals]).
func (s *socket) refusals(n int) ([]error, error) {
	refusals, err := s.Refusals(s.seq-uint32(n)+1, s.seq)
	if errors.Is(err, nlsock.ErrLost) {
		return refusals, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	s.owing = err != nil
	return refusals, err
}
