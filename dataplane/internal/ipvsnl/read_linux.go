package ipvsnl

import (
	"cmp"
	"context"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/nlsock"
)

// rereads is how often a list is requested again because its answer overflowed the buffer.
const rereads = 3

// Service implements Conn.
func (k *Client) Service(ctx context.Context, key balancer.Key) (ServiceState, error) {
	const doing = "reading virtual server"
	if err := (Op{Verb: DeleteService, Service: Service{Key: key}}).Invalid(); err != nil {
		return ServiceState{}, errNone(doing, key) // a virtual server with this key can't exist
	}
	k.marks.note(key)
	v, err := ask(ctx, k, func(s *socket) {
		s.ask(getService, 0, key)
	}, func(s *socket) (v ServiceState, err error) {
		err = s.answers(func(body []byte) (err error) {
			v, _, err = readService(body, &k.marks)
			return err
		})
		return v, err
	})
	if err == syscall.ESRCH {
		return v, errNone(doing, key)
	}
	return v, k.failed(err, doing, key)
}

// Services implements Conn.
func (k *Client) Services(ctx context.Context) ([]ServiceState, error) {
	all, err := list(ctx, k, func(s *socket) {
		s.begin(getService, unix.NLM_F_DUMP)
		s.End()
	}, func(body []byte) (ServiceState, bool, error) { return readService(body, &k.marks) })
	return all, k.failed(err, "reading", "virtual servers")
}

// Destinations implements Conn.
func (k *Client) Destinations(ctx context.Context, key balancer.Key) ([]DestinationState, error) {
	const doing = "reading destinations of virtual server"
	if err := (Op{Verb: DeleteService, Service: Service{Key: key}}).Invalid(); err != nil {
		return nil, errNone(doing, key)
	}
	k.marks.note(key)
	all, err := list(ctx, k, func(s *socket) {
		s.ask(getDestination, unix.NLM_F_DUMP, key)
	}, func(body []byte) (DestinationState, bool, error) {
		d, err := readDestination(body, key)
		return d, true, err
	})
	if err == nil && len(all) == 0 { // a missing virtual server has the same answer
		_, err := k.Service(ctx, key)
		return nil, err
	}
	return all, k.failed(err, doing, key)
}

// failed adds the operation and the object to err.
func (k *Client) failed(err error, doing string, what any) error {
	if err == nil {
		return nil
	}
	if err == syscall.ENOENT { // IPVS itself never answers these requests with ENOENT
		err = cmp.Or(k.unloaded(), err)
	}
	return fmt.Errorf("%s %v: %w", doing, what, err)
}

// ask writes a request about a virtual server.
func (s *socket) ask(command byte, flags uint16, key balancer.Key) {
	s.begin(command, flags)
	s.Nest(aboutService)
	s.key(key)
	s.Unnest()
	s.End()
}

// list requests a list. It repeats the request if the answer overflowed the buffer.
func list[T any](ctx context.Context, k *Client, write func(*socket), read func([]byte) (T, bool, error)) ([]T, error) {
	for try := 0; ; try++ {
		all, err := ask(ctx, k, write, func(s *socket) (all []T, err error) {
			err = s.answers(func(body []byte) error {
				v, ok, err := read(body)
				if ok {
					all = append(all, v)
				}
				return err
			})
			return all, err
		})
		if err != unix.ENOBUFS || try == rereads {
			return all, err
		}
	}
}

// answers calls read with the body of each answer to the last message. It returns the kernel's
// refusal as a syscall.Errno.
func (s *socket) answers(read func(body []byte) error) error {
	for {
		m, err := s.Receive()
		if err != nil {
			return err
		}
		for m.Next() {
			if m.Seq != s.seq {
				return nlsock.ErrMalformed
			}
			if m.Kind == unix.NLMSG_ERROR || m.Kind == unix.NLMSG_DONE {
				s.owing = false
				return m.Refusal()
			}
			if err := read(m.Body); err != nil {
				return err
			}
			if m.Flags&unix.NLM_F_MULTI == 0 {
				s.owing = false
				return nil
			}
		}
		if m.Err != nil {
			return m.Err
		}
	}
}
