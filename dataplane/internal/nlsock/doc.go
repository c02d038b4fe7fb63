// Package nlsock reads and writes netlink messages that libraries don't support or send too slowly.
// It has a socket that works with Go's poller, a writer of messages, and readers of messages and
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
// A Writer writes messages with their attributes. Its users define the meaning of messages, number
// them, and match answers to requests.
package nlsock
