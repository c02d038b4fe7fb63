// Package storetest is a test suite that every source of services must pass. It tests the
// guarantees on which users of a source rely.
//
//	func TestSource(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Place { return newPlace(t) })
//	}
//
// In each test, all published snapshots must obey the same rules: revisions increase, equal values
// keep their pointers, and published values never change.
package storetest
