(* The integer certificate of a table, checked by Coq.

   A mechanism draws an output from one of several rows of integer weights; rows[i] is the weight of output i.
   Which row is drawn from depends on the input, and may be random: a mixture of rows, with weights (numbers of
   draws) that depend on the input. If in every column the largest weight is at most num / den times the
   smallest, then the same holds for the weights of any set S of outputs under any two mixtures P, Q of so many
   draws:

       den * P(S) * draws(Q) <= num * Q(S) * draws(P).

   All rows have the same total, so that P(S) / (total * draws(P)) is the probability of S.

   With den / num <= e^-epsilon that is epsilon-differential privacy. All numbers are natural numbers, so that
   no rounding is left out.  Check: coqc docs/proofs/certificate.v *)

Require Import Arith List Lia.
Import ListNotations.

(* A row is the weights of the outputs; a set of outputs is a function that says which are in it. *)
Definition row := nat -> nat.

(* The weight of the first n outputs that are in the set. *)
Fixpoint mass (r : row) (inside : nat -> bool) (n : nat) : nat :=
  match n with
  | O => 0
  | S m => mass r inside m + (if inside m then r m else 0)
  end.

(* A mixture: pairs of a multiplicity and a row. *)
Definition mixture := list (nat * row).

Fixpoint weight (m : mixture) : nat :=
  match m with
  | [] => 0
  | (k, _) :: rest => k + weight rest
  end.

Fixpoint mixed (m : mixture) (i : nat) : nat :=
  match m with
  | [] => 0
  | (k, r) :: rest => k * r i + mixed rest i
  end.

(* What the certificate checks in a table: every two weights of one column. *)
Definition certified (table : list row) (num den : nat) : Prop :=
  forall r s i, In r table -> In s table -> den * r i <= num * s i.

Definition over (table : list row) (m : mixture) : Prop :=
  forall k r, In (k, r) m -> In r table.

Lemma one_row_against_a_mixture : forall table num den r q i,
  certified table num den -> In r table -> over table q ->
  den * r i * weight q <= num * mixed q i.
Proof.
  intros table num den r q i C R. induction q as [| [k s] rest IH]; intros Q; simpl.
  - lia.
  - assert (In s table) as Hs by (apply (Q k); left; reflexivity).
    assert (over table rest) as Hrest by (intros a b H; apply (Q a); right; exact H).
    specialize (IH Hrest). specialize (C r s i R Hs). nia.
Qed.

Lemma two_mixtures : forall table num den p q i,
  certified table num den -> over table p -> over table q ->
  den * mixed p i * weight q <= num * mixed q i * weight p.
Proof.
  intros table num den p q i C P Q. induction p as [| [k r] rest IH]; simpl.
  - lia.
  - assert (In r table) as Hr by (apply (P k); left; reflexivity).
    assert (over table rest) as Hrest by (intros a b H; apply (P a); right; exact H).
    specialize (IH Hrest).
    pose proof (one_row_against_a_mixture table num den r q i C Hr Q). nia.
Qed.

(* The certificate: no set of outputs tells two mixtures apart by more than the worst ratio of two weights. *)
Theorem certificate : forall table num den p q inside n,
  certified table num den -> over table p -> over table q ->
  den * mass (mixed p) inside n * weight q <= num * mass (mixed q) inside n * weight p.
Proof.
  intros table num den p q inside n C P Q. induction n as [| n IH]; simpl.
  - lia.
  - pose proof (two_mixtures table num den p q n C P Q). destruct (inside n); nia.
Qed.

(* The same for probabilities: where all rows of a table have the same total, as those of a certified table do,
   a mixture gives a set the probability mass / (total * weight). *)
Lemma mass_of_mixture : forall m table inside n total,
  over table m -> (forall r, In r table -> mass r (fun _ => true) n = total) ->
  mass (mixed m) (fun _ => true) n = total * weight m /\ mass (mixed m) inside n <= total * weight m.
Proof.
  assert (forall k r rest inside n,
    mass (mixed ((k, r) :: rest)) inside n = k * mass r inside n + mass (mixed rest) inside n) as sum.
  { intros k r rest inside n. induction n as [| n IH]; cbn [mass]; [lia |]. rewrite IH.
    change (mixed ((k, r) :: rest) n) with (k * r n + mixed rest n).
    destruct (inside n); ring. }
  assert (forall (r : row) inside n, mass r inside n <= mass r (fun _ => true) n) as part.
  { intros r inside n. induction n as [| n IH]; simpl; [lia |]. destruct (inside n); lia. }
  intros m table inside n total M T.
  assert (mass (mixed m) (fun _ => true) n = total * weight m) as whole.
  { induction m as [| [k r] rest IH].
    - clear T. simpl weight. rewrite Nat.mul_0_r. induction n as [| n IH]; [reflexivity |].
      cbn [mass]. rewrite IH. reflexivity.
    - rewrite sum. rewrite IH by (intros a b H; apply (M a); right; exact H).
      rewrite (T r) by (apply (M k); left; reflexivity). simpl weight. ring. }
  split; [exact whole |]. rewrite <- whole. apply part.
Qed.

(* The bound cannot be lowered: if two weights of a column of a table have a larger ratio, then two mixtures of
   rows of that table, with a draw each, and a set of one output violate it. *)
Theorem certificate_is_tight : forall (table : list row) (r s : row) (i num den : nat),
  In r table -> In s table -> den * r i > num * s i ->
  exists p q inside n, over table p /\ over table q /\ weight p = 1 /\ weight q = 1 /\
    den * mass (mixed p) inside n * weight q > num * mass (mixed q) inside n * weight p.
Proof.
  intros table r s i num den R Q H.
  exists [(1, r)], [(1, s)], (fun j => j =? i), (S i).
  assert (forall f n, n <= i -> mass f (fun j => j =? i) n = 0) as Z.
  { intros f n. induction n as [| n IH]; intros L; simpl; [reflexivity |].
    rewrite IH by lia. destruct (Nat.eqb_spec n i); lia. }
  repeat split.
  - intros k t [E | []]. injection E as _ E. subst. exact R.
  - intros k t [E | []]. injection E as _ E. subst. exact Q.
  - cbn [mass]. rewrite !Z by lia. rewrite Nat.eqb_refl. simpl. nia.
Qed.

(* A table that can be certified exists, and one that cannot: the theorem is not about nothing. *)
Example certified_exists : certified [(fun i => S i); (fun i => 2 * S i)] 2 1.
Proof. intros r s i [<- | [<- | []]] [<- | [<- | []]]; lia. Qed.

Example not_certified_exists : ~ certified [(fun i => S i); (fun i => 2 * S i)] 1 1.
Proof.
  intros C. specialize (C (fun i => 2 * S i) (fun i => S i) 0).
  assert (1 * (2 * 1) <= 1 * 1) by (apply C; simpl; tauto). lia.
Qed.

Print Assumptions mass_of_mixture.
Print Assumptions certificate.
Print Assumptions certificate_is_tight.
