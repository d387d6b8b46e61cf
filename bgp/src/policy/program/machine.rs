//! Runs the steps of a program over a route.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::Prefix;

use super::mask::{MaskItem, PathMask};
use super::numbers::{arithmetic, extended};
use super::roa::RoaTable;
use super::set::ValueSet;
use super::stop::{Answer, Stop, fault};
use super::tree::{
    Attribute, Expression, Function, MaskPart, Method, Operator, Place, Step, StepAction,
};
use super::value::{RouteList, Value, network};
use super::{list, quick, route};
use crate::attrs::PathAttrs;
use crate::policy::{FilterVerdict, RouteView};
use crate::types::LargeCommunity;

/// Weights of expressions and calls inside each other, at most: a thread of the runtime has room
/// for them.
const DEEPEST: u32 = 512;
/// Weight of a call.
const CALL: u32 = 4;
/// Steps for one route, at most.
const LONGEST: u32 = 1_000_000;
/// Why an expression of the file itself has no value.
const NO_ROUTE: &str = "there is no route here";

/// What happens behind a step.
enum Flow {
    Next,
    Return(Value),
}

/// One run.
pub(super) struct Machine<'m, 'r> {
    /// `None`: an expression of the file itself.
    route: Option<&'m mut RouteView<'r>>,
    /// Variables of all calls.
    stack: Vec<Value>,
    /// Where those of the current call begin.
    base: usize,
    depth: u32,
    steps: u32,
    /// Where the last step stands.
    pub(super) place: Option<Place>,
    /// Gets what `print` prints.
    print: &'m dyn Fn(&str),
}

impl<'m, 'r> Machine<'m, 'r> {
    pub(super) fn new(
        route: Option<&'m mut RouteView<'r>>,
        locals: u16,
        print: &'m dyn Fn(&str),
    ) -> Self {
        Self {
            route,
            stack: vec![Value::Void; locals.into()],
            base: 0,
            depth: 0,
            steps: 0,
            place: None,
            print,
        }
    }

    /// Runs steps; `Ok`: nothing has decided.
    pub(super) fn run(&mut self, steps: &[Step]) -> Answer<()> {
        self.steps(steps, None).map(|_| ())
    }

    fn steps(&mut self, steps: &[Step], function: Option<&Function>) -> Answer<Flow> {
        for step in steps {
            // Most steps of most filters: a refusal whose condition does not hold.
            if let StepAction::If(condition, _, no) = &step.action
                && no.is_empty()
                && self.quick(condition) == Some(false)
            {
                self.steps += 1;
                continue;
            }
            if let Flow::Return(value) = self.step(step, function)? {
                return Ok(Flow::Return(value));
            }
        }
        Ok(Flow::Next)
    }

    fn step(&mut self, step: &Step, function: Option<&Function>) -> Answer<Flow> {
        self.steps += 1;
        if self.steps > LONGEST {
            return fault("the filter takes too many steps for one route");
        }
        let done = self.act(step, function);
        // The innermost step that failed is the one to name.
        if let (Err(Stop::Fault(_)), None) = (&done, &self.place) {
            self.place = Some(step.place.clone());
        }
        done
    }

    fn act(&mut self, step: &Step, function: Option<&Function>) -> Answer<Flow> {
        match &step.action {
            StepAction::If(condition, yes, no) => {
                let branch = if self.truth(condition, function)? {
                    yes
                } else {
                    no
                };
                return self.steps(branch, function);
            }
            StepAction::Case(subject, branches) => {
                let key = self.eval(subject, function)?.key();
                let taken = branches.iter().find(|(set, _)| match (set, key) {
                    (None, _) => true,
                    (Some(set), Some((kind, key))) => set.holds(kind, key),
                    (Some(_), None) => false,
                });
                if let Some((_, branch)) = taken {
                    return self.steps(branch, function);
                }
            }
            StepAction::For(slot, subject, body) => {
                let list = self.settled(subject, function)?;
                let Some(elements) = list::elements(&list) else {
                    return fault(format!(
                        "\"for\" goes over a path or a list, and not over {}",
                        list.value_type().what()
                    ));
                };
                for element in elements {
                    self.assign(*slot, element);
                    if let Flow::Return(value) = self.steps(body, function)? {
                        return Ok(Flow::Return(value));
                    }
                }
            }
            StepAction::Assign(slot, given) => {
                let value = self.settled(given, function)?;
                // A declaration alone leaves the variable without a value.
                if value == Value::Void && *given != Expression::Constant(Value::Void) {
                    return fault("a variable is set to something that the route has not");
                }
                self.assign(*slot, value);
            }
            StepAction::Set(attribute, value) => {
                let value = self.settled(value, function)?;
                route::set(self.route_mut()?, *attribute, value).map_err(Stop::Fault)?;
            }
            StepAction::Unset(attribute) => {
                route::unset(self.route_mut()?, *attribute).map_err(Stop::Fault)?;
            }
            StepAction::Call(call) => {
                self.eval(call, function)?;
            }
            StepAction::Accept | StepAction::Reject => {
                let verdict = match step.action {
                    StepAction::Accept => FilterVerdict::Accept,
                    _ => FilterVerdict::Reject,
                };
                return Err(Stop::End(verdict, Some(step.place.clone())));
            }
            StepAction::Return(value) => return self.settled(value, function).map(Flow::Return),
            StepAction::Print(values) => {
                let mut line = String::new();
                for value in values {
                    let value = self.settled(value, function)?;
                    line.push_str(&self.shown(&value));
                }
                (self.print)(&line);
            }
        }
        Ok(Flow::Next)
    }

    fn shown(&self, value: &Value) -> String {
        match self.text(value) {
            Some(text) => text.to_owned(),
            None => value.to_string(),
        }
    }

    fn assign(&mut self, slot: u16, value: Value) {
        let at = self.base + usize::from(slot);
        if let Some(place) = self.stack.get_mut(at) {
            *place = value;
        }
    }

    fn quick(&self, condition: &Expression) -> Option<bool> {
        quick::answer(self.route.as_deref()?, condition)
    }

    fn truth(&mut self, condition: &Expression, function: Option<&Function>) -> Answer<bool> {
        if let Some(answer) = self.quick(condition) {
            return Ok(answer);
        }
        match self.eval(condition, function)? {
            Value::Bool(answer) => Ok(answer),
            other => fault(format!(
                "a condition has to be true or false, and is {}",
                other.value_type().what()
            )),
        }
    }

    /// The value, and where it is a list of the route, a copy of that.
    pub(super) fn settled(
        &mut self,
        expression: &Expression,
        function: Option<&Function>,
    ) -> Answer<Value> {
        let value = self.eval(expression, function)?;
        Ok(self.settle(value))
    }

    fn settle(&self, value: Value) -> Value {
        match (value, self.attrs()) {
            (Value::Route(which), Some(attrs)) => route::copied(attrs, which),
            (value, _) => value,
        }
    }

    fn route(&self) -> Answer<&RouteView<'r>> {
        match &self.route {
            Some(route) => Ok(route),
            None => fault(NO_ROUTE),
        }
    }

    fn route_mut(&mut self) -> Answer<&mut RouteView<'r>> {
        match &mut self.route {
            Some(route) => Ok(route),
            None => fault(NO_ROUTE),
        }
    }

    fn attrs(&self) -> Option<&PathAttrs> {
        self.route.as_ref().map(|route| &*route.attrs)
    }

    fn eval(&mut self, expression: &Expression, function: Option<&Function>) -> Answer<Value> {
        if self.depth >= DEEPEST {
            return fault("too many expressions and calls inside each other");
        }
        self.depth += 1;
        let value = self.value(expression, function);
        self.depth -= 1;
        value
    }

    fn value(&mut self, expression: &Expression, function: Option<&Function>) -> Answer<Value> {
        match expression {
            Expression::Constant(value) => Ok(value.clone()),
            Expression::Variable(slot) => {
                let at = self.base + usize::from(*slot);
                Ok(self.stack.get(at).cloned().unwrap_or(Value::Void))
            }
            Expression::Attribute(attribute) => Ok(route::read(self.route()?, *attribute)),
            Expression::Defined(attribute) => {
                Ok(Value::Bool(route::defined(self.route()?, *attribute)))
            }
            Expression::Not(inner) => self.truth(inner, function).map(|yes| Value::Bool(!yes)),
            Expression::And(all) => {
                for one in all {
                    if !self.truth(one, function)? {
                        return Ok(Value::Bool(false));
                    }
                }
                Ok(Value::Bool(true))
            }
            Expression::Or(all) => {
                for one in all {
                    if self.truth(one, function)? {
                        return Ok(Value::Bool(true));
                    }
                }
                Ok(Value::Bool(false))
            }
            Expression::Binary(operator, both) => {
                let [left, right] = self.both(both, function)?;
                self.binary(*operator, &left, &right)
            }
            Expression::Method(method, subject, argument) => {
                let mut subject_value = self.eval(subject, function)?;
                let argument = match argument {
                    Some(argument) => {
                        if argument.has_calls() {
                            subject_value = self.settle(subject_value);
                        }
                        Some(self.settled(argument, function)?)
                    }
                    None => None,
                };
                self.method(*method, &subject_value, argument.as_ref())
            }
            Expression::Pair(both) => {
                let [first, second] = self.numbers(both, function)?;
                match (u16::try_from(first), u16::try_from(second)) {
                    (Ok(_), Ok(_)) => Ok(Value::Pair(first << 16 | second)),
                    _ => fault("the parts of a pair are numbers up to 65535"),
                }
            }
            Expression::Large(all) => {
                let [a, b, c] = self.numbers(all, function)?;
                Ok(Value::Large(LargeCommunity(a, b, c)))
            }
            Expression::Extended(kind, both) => {
                let [first, second] = self.both(both, function)?;
                extended(*kind, &first, &second)
            }
            Expression::Mask(parts) => self.mask(parts, function),
            Expression::Call(called, arguments) => self.call(called, arguments, function),
            Expression::Origin(table, both) => self.origin(table, both.as_deref(), function),
            Expression::Recursion(arguments) => match function {
                Some(called) => self.call(called, arguments, function),
                None => fault("a call without a function"),
            },
        }
    }

    /// What a table says of a prefix and an AS, or of the route.
    fn origin(
        &mut self,
        table: &RoaTable,
        both: Option<&[Expression; 2]>,
        function: Option<&Function>,
    ) -> Answer<Value> {
        if let Some(both) = both {
            let [prefix, asn] = self.both(both, function)?;
            return table.state(&prefix, &asn).map_err(Stop::Fault);
        }
        if !route::defined(self.route()?, Attribute::Path) {
            return fault("the route has no AS path");
        }
        let last = self.method(Method::Last, &Value::Route(RouteList::Path), None)?;
        let prefix = Value::Prefix(self.route()?.prefix);
        table.state(&prefix, &last).map_err(Stop::Fault)
    }

    /// Two values; the first as it was before the second was computed.
    fn both(&mut self, both: &[Expression; 2], function: Option<&Function>) -> Answer<[Value; 2]> {
        let mut left = self.eval(&both[0], function)?;
        if matches!(left, Value::Route(_)) && both[1].has_calls() {
            left = self.settle(left);
        }
        let right = self.eval(&both[1], function)?;
        Ok([left, right])
    }

    fn numbers<const N: usize>(
        &mut self,
        all: &[Expression; N],
        function: Option<&Function>,
    ) -> Answer<[u32; N]> {
        let mut numbers = [0; N];
        for (number, expression) in numbers.iter_mut().zip(all) {
            *number = match self.eval(expression, function)? {
                Value::Int(value) | Value::Quad(value) => value,
                Value::Ip(IpAddr::V4(address)) => address.to_bits(),
                other => {
                    return fault(format!("{} is no number", other.value_type().what()));
                }
            };
        }
        Ok(numbers)
    }

    fn call(
        &mut self,
        called: &Function,
        arguments: &[Expression],
        function: Option<&Function>,
    ) -> Answer<Value> {
        let top = self.stack.len();
        for argument in arguments {
            let value = self.settled(argument, function)?;
            self.stack.push(value);
        }
        self.stack
            .resize(top + usize::from(called.locals), Value::Void);
        let caller = std::mem::replace(&mut self.base, top);
        self.depth += CALL;
        let done = self.steps(&called.body, Some(called));
        self.depth -= CALL;
        self.base = caller;
        self.stack.truncate(top);
        Ok(match done? {
            Flow::Return(value) => value,
            Flow::Next => Value::Void,
        })
    }

    fn mask(&mut self, parts: &[MaskPart], function: Option<&Function>) -> Answer<Value> {
        let mut items = Vec::with_capacity(parts.len());
        for part in parts {
            items.push(match part {
                MaskPart::Any => MaskItem::Any,
                MaskPart::One => MaskItem::One,
                MaskPart::More => MaskItem::More,
                MaskPart::Value(value) => match self.eval(value, function)? {
                    Value::Int(asn) => MaskItem::Range(asn, asn),
                    Value::Set(set) => MaskItem::Set(set),
                    other => {
                        return fault(format!("{} in a path mask", other.value_type().what()));
                    }
                },
                MaskPart::Range(low, high) => {
                    match (self.eval(low, function)?, self.eval(high, function)?) {
                        (Value::Int(low), Value::Int(high)) => MaskItem::Range(low, high),
                        _ => return fault("the ends of a range are numbers"),
                    }
                }
            });
        }
        Ok(Value::Mask(Arc::new(PathMask(items.into()))))
    }

    fn binary(&self, operator: Operator, left: &Value, right: &Value) -> Answer<Value> {
        use Operator as O;
        match operator {
            O::Add | O::Subtract | O::Multiply | O::Divide => arithmetic(operator, left, right),
            O::Equal => Ok(Value::Bool(self.same(left, right))),
            O::NotEqual => Ok(Value::Bool(!self.same(left, right))),
            O::Match => self.matches(left, right).map(Value::Bool),
            O::NotMatch => self.matches(left, right).map(|yes| Value::Bool(!yes)),
            O::Less | O::LessOrEqual | O::Greater | O::GreaterOrEqual => {
                let Some(order) = self.order(left, right) else {
                    return fault(format!(
                        "{} is compared with {}",
                        left.value_type().what(),
                        right.value_type().what()
                    ));
                };
                Ok(Value::Bool(match operator {
                    O::Less => order == Ordering::Less,
                    O::LessOrEqual => order != Ordering::Greater,
                    O::Greater => order == Ordering::Greater,
                    _ => order != Ordering::Less,
                }))
            }
        }
    }

    /// The text of a string.
    fn text<'v>(&'v self, value: &'v Value) -> Option<&'v str> {
        match value {
            Value::Text(text) => Some(text),
            Value::Interface => Some(self.route.as_ref()?.interface.unwrap_or_default()),
            Value::Protocol => Some(self.route.as_ref()?.sender.name),
            _ => None,
        }
    }

    /// BIRD's order: what is missing is less than everything else.
    fn order(&self, left: &Value, right: &Value) -> Option<Ordering> {
        match (left, right) {
            (Value::Void, Value::Void) => Some(Ordering::Equal),
            (Value::Void, _) => Some(Ordering::Less),
            (_, Value::Void) => Some(Ordering::Greater),
            (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
            (Value::Prefix(a), Value::Prefix(b)) => Some(a.cmp(b)),
            _ => {
                if let (Some(a), Some(b)) = (self.text(left), self.text(right)) {
                    return Some(a.cmp(b));
                }
                let ((kind, a), (other, b)) = (left.key()?, right.key()?);
                (kind == other).then(|| a.cmp(&b))
            }
        }
    }

    fn same(&self, left: &Value, right: &Value) -> bool {
        if let Some(order) = self.order(left, right) {
            return order == Ordering::Equal;
        }
        match (left, right) {
            (Value::Route(a), Value::Route(b)) => {
                a == b || self.settle(left.clone()) == self.settle(right.clone())
            }
            (Value::Route(_), other) | (other, Value::Route(_)) => {
                let route = if matches!(left, Value::Route(_)) {
                    left
                } else {
                    right
                };
                self.settle(route.clone()) == *other
            }
            _ => left == right,
        }
    }

    fn matches(&self, left: &Value, right: &Value) -> Answer<bool> {
        if let (Some(text), Some(pattern)) = (self.text(left), self.text(right)) {
            return Ok(crate::policy::glob(pattern, text));
        }
        match (left, right) {
            (Value::Prefix(prefix), Value::Set(set)) => match &**set {
                ValueSet::Prefixes(set) => return Ok(set.matches(prefix)),
                ValueSet::Empty => return Ok(false),
                ValueSet::Ranges(..) => {}
            },
            (Value::Prefix(inner), Value::Prefix(outer)) => return Ok(outer.covers(inner)),
            (Value::Ip(address), Value::Prefix(outer)) => return Ok(outer.contains(*address)),
            _ => {}
        }
        match list::matches(self.attrs(), left, right) {
            Some(answer) => Ok(answer),
            None => fault(format!(
                "\"~\" between {} and {}",
                left.value_type().what(),
                right.value_type().what()
            )),
        }
    }

    fn method(&self, method: Method, subject: &Value, argument: Option<&Value>) -> Answer<Value> {
        let answer = match (method, subject, argument) {
            (Method::Len, Value::Prefix(prefix), None) => Value::Int(prefix.len().into()),
            (Method::Ip, Value::Prefix(prefix), None) => Value::Ip(prefix.address()),
            (Method::Type, Value::Prefix(prefix), None) => network(prefix),
            (Method::IsV4, Value::Ip(address), None) => Value::Bool(address.is_ipv4()),
            (Method::Mask, Value::Ip(address), Some(Value::Int(len))) => {
                let len = u8::try_from(*len).unwrap_or(u8::MAX);
                Value::Ip(Prefix::truncated(*address, len).address())
            }
            (Method::Asn, Value::Pair(pair), None) => Value::Int(pair >> 16),
            (Method::Data, Value::Pair(pair), None) => Value::Int(pair & 0xffff),
            (Method::Asn, Value::Large(community), None) => Value::Int(community.0),
            (Method::Data, Value::Large(community), None) => Value::Int(community.1),
            (Method::Data2, Value::Large(community), None) => Value::Int(community.2),
            _ => match list::method(self.attrs(), method, subject, argument) {
                Some(value) => value,
                None => {
                    return fault(format!(
                        "{} has no such property{}",
                        subject.value_type().what(),
                        argument.map_or_else(String::new, |argument| format!(
                            " with {}",
                            argument.value_type().what()
                        ))
                    ));
                }
            },
        };
        Ok(answer)
    }
}
