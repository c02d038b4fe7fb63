// Package nlsock reads and writes netlink messages that libraries don't support or send too slowly.
// It contains a socket that works with Go's poller, a message writer, and readers for messages and
// attributes that do not allocate memory.
//
//	s, err := nlsock.Open(unix.NETLINK_NETFILTER)
//	defer s.Close()
//	err = s.Send(question)
//	m, err := s.Receive()
//	for m.Next() {
//		for a := nlsock.In(m.Body[headerSize:]); a.Next(); {
//			fmt.Println(a.Kind, a.Value)
//		}
//	}
//
// A Writer writes messages with their attributes. The importing packages define what messages mean,
// number them, and match answers to requests.
package nlsock
