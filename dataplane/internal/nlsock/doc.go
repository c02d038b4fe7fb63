// Package nlsock reads and writes netlink messages that a library lacks or sends too slowly. It has
// a socket that works with Go's poller, a writer of messages, and readers of messages and
// attributes that do not allocate.
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
// A Writer writes messages with their attributes. Its users know their meaning, number them, and
// match answers to requests.
package nlsock
