// Package storetest is the suite that every source of services passes: what those behind a source rely on.
//
//	func TestSource(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Place { return newPlace(t) })
//	}
//
// Every snapshot that is published in any of its tests is held to the same laws: revisions go up, equal values keep
// their pointers, and what has been published does not change any more.
package storetest
