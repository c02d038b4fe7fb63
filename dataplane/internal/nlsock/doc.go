// Package nlsock is what all need who write messages for the kernel themselves, because a library lacks them or is too slow:
// a netlink socket that is waited for as any file of Go's is, a writer of messages, and readers of messages and of their attributes, which
// allocate nothing.
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
// A Writer writes messages with their attributes; those who know what is in them number them, and match answers to questions.
package nlsock
