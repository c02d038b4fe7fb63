package ipvsnl

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"vipd/dataplane"
	"vipd/dataplane/internal/nlsock"
)

// batch is the number of changes that are sent at once. What goes from process to kernel and back costs next to nothing
// then, and others that wait for IPVS's lock don't wait long.
const batch = 128

// errLost: there was no room for all that the kernel had to say.
var errLost = fmt.Errorf("%w: what it said was lost", ErrNoAnswer)

// Do implements Conn.
func (k *Kernel) Do(ctx context.Context, ops []Op) []error {
	errs := make([]error, len(ops))
	possible := make([]int, 0, len(ops))
	for i := range ops {
		if errs[i] = ops[i].invalid(); errs[i] == nil {
			possible = append(possible, i)
		}
	}
	failed := len(possible) < len(ops)
	var stopped error
	for part := range slices.Chunk(possible, batch) {
		var refusals []syscall.Errno
		err := stopped
		if err == nil {
			refusals, err = k.change(ctx, ops, part)
			if err != nil && refusals == nil {
				stopped = fmt.Errorf("not tried: %w", err)
			}
		}
		for j, i := range part {
			switch {
			case refusals != nil && refusals[j] != 0:
				errs[i] = ops[i].refused(refusals[j])
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

// change sends those of ops whose indices part has, and returns the kernel's number for why each was not done; 0 means it was
// done, or, with errLost, nothing is known of it.
func (k *Kernel) change(ctx context.Context, ops []Op, part []int) ([]syscall.Errno, error) {
	var last uint32
	refusals, err := ask(ctx, k, func(s *socket) {
		for j, i := range part {
			var flags uint16
			if j == len(part)-1 {
				flags = unix.NLM_F_ACK // of the others the kernel tells what it refused
			}
			s.op(&ops[i], flags)
		}
		last = s.seq
		dataplane.Wrote(ctx, len(s.B))
	}, func(s *socket) ([]syscall.Errno, error) {
		return s.refusals(last, len(part))
	})
	if err == nil && slices.Contains(refusals, syscall.ENOENT) {
		if err := k.gone(); err != nil {
			return nil, err
		}
	}
	return refusals, err
}

// refusals reads the answers to n messages, of which the last has that number. The kernel works off all of them while
// they are sent: whatever it has to say is there.
func (s *socket) refusals(last uint32, n int) ([]syscall.Errno, error) {
	refusals := make([]syscall.Errno, n)
	lost := false
	for {
		m, err := s.Receive()
		switch {
		case err == unix.ENOBUFS:
			lost = true
			s.Drain()
			continue
		case err == unix.EAGAIN && lost:
			return refusals, errLost
		case err != nil:
			return nil, err
		}
		for m.Next() {
			err := m.Refusal()
			errno, known := err.(syscall.Errno)
			if m.Kind != unix.NLMSG_ERROR || err != nil && !known {
				return nil, nlsock.ErrMalformed
			}
			if i := n - 1 - int(int32(last-m.Seq)); i >= 0 && i < n {
				refusals[i] = errno
			}
			if m.Seq == last && !lost {
				s.owing = false
				return refusals, nil
			}
		}
		if m.Err != nil {
			return nil, m.Err
		}
	}
}
